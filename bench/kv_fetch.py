"""Time to the first token of a prompt whose prefix another node has computed.

Four parts. In the first, two simulated machines compute a model of TinyLlama's shape (1.1 B, with
the speed of this machine's kind of core: 91 tokens/s) and are linked by 100 Mbit/s; the prompt has
4,000 tokens, and its chunks travel as int8. `value` is the time to the first token, divided by the
bytes over the rate, plus a round trip, plus the time to compute the rest of the prompt; goal at
most 1.2. In the second, two real engines on this machine compute the embedded model in float32,
linked over loopback; the prompt has 900 tokens, and its chunks travel exactly. `real` is the time
with the choice that a node makes, divided by the better of fetching everything and computing
everything; goal at most 1.1. In the third, the same ratio is taken in the simulator over a grid of
rates and machines; `grid` is the largest; goal at most 1.1. In the fourth, the same is done over a
chain of two stages, each of which fetches its half of the KV from a node with a line of that rate,
with lines of 1 Gbit/s between gateway and stages; `chain` is the largest ratio, goal at most 1.1,
and `chain_first` the largest one to a chain whose stages fetch first and then compute, as they did
before. All ways answer with the same token, where the chunks are exact. Each round measures all
ways in turns.
"""

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from worlds.chunkchain import CHAIN_MODES, ChunkChain
from worlds.chunknodes import MODES, ChunkNode, First, serving
from worlds.engines import config, prompt, write_tensor

from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES, Profile
from shoal.netsim.host import Host as Computer
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.chunks.choice import compute_seconds
from shoal.tasks.chunks.naming import CHUNK
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import LoadShard, Parts, TensorSource
from shoal.tasks.engine.process import EngineProcess
from shoal.transport.address import Address
from shoal.transport.host.real import RealHost

MEASURES = ("tasks", "dht", "netsim", "transport", "node", "state")

GOAL: Final = 1.2
NEAR: Final = 1.1
TOKENS_PER_S: Final = 91.0  # of TinyLlama's prompts on one core of an EPYC, bfloat16
RATE: Final = 12.5e6  # bytes/s: 100 Mbit/s
DELAY: Final = 0.005  # seconds of each machine's line, beside the 10 ms between two sites


def slowed(tokens_per_s: float) -> Profile:
    """Return a machine that computes the 1.1 B model at this rate."""
    laptop = PROFILES["laptop"]
    # 0.97e9 parameters in the layers, two operations each.
    factor = laptop.speed.float32 / (2 * 0.97e9) / tokens_per_s
    return replace(laptop, speed=replace(laptop.speed, factor=factor), offered=64 << 30)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times to the first token by mode, and what a perfect fetch would take."""

    firsts: dict[str, First]
    ideal: float


def invented(host: SimulatedHost, parts: Parts | None = None) -> LoadShard:
    """Return a model of 1.1 B, or a part of it, whose tensors are all the same few bytes on the
    disk."""
    settings = config("1.1B")
    arch = architecture(settings)
    parts = parts or Parts(True, 0, arch.layers, True)
    data = b"weights" * 10
    host.files.make_folder(Path("/chunks"))
    host.files.write(Path("/chunks/one"), data)
    digest = hashlib.sha256(data).digest()
    tensors = tuple(
        TensorSource((role,), "BF16", shape, ("/chunks/one",), (digest,))
        for role, shape in tensor_shapes(arch, parts).items()
    )
    return LoadShard("ab" * 32, parts, settings, tensors, "bfloat16", 1 << 30)


class Simulated:
    """Two machines and their line."""

    def __init__(self, rate: float, tokens_per_s: float, tokens: int) -> None:
        self.rate = rate
        self.tokens = tokens
        self.profile = slowed(tokens_per_s)
        self.world = World(seed=1)

    def run(self, *modes: str) -> Outcome:
        """Measure these modes in one world, one after the other."""
        found: Outcome = self.world.run(partial(self._main, modes))
        return found

    async def _main(self, modes: Sequence[str]) -> Outcome:
        pipe = PipeSpec(rate=self.rate, delay=DELAY)
        computers = [self.world.host(name, link=LinkSpec(pipe, pipe)) for name in ("has", "asks")]
        nodes: list[ChunkNode] = []
        for number, computer in enumerate(computers, 1):
            nodes.append(await computer.start(partial_program(self._node, number)))
        address = Address(computers[0].addresses()[0], 4001, nodes[0].identity.peer)
        return await computers[1].run(self._measure, nodes, address, modes)

    async def _node(
        self, number: int, computer: Computer, *, task_status: "trio.TaskStatus[ChunkNode]"
    ) -> None:
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, self.profile, nursery)
            engine = SimulatedEngine(host, 1, 64 << 30, "numbers")
            node = ChunkNode(host, number, engine)
            async with serving(node, "0.0.0.0", 4001):
                await node.load(invented(host))
                task_status.started(node)
                await trio.sleep_forever()

    async def _measure(
        self, nodes: list[ChunkNode], address: Address, modes: Sequence[str]
    ) -> Outcome:
        has, asks = nodes
        await asks.dial(address)
        ids = prompt(self.tokens, 1)
        await has.ask(ids, "compute", keep=True)
        firsts = {mode: await asks.ask(ids, mode) for mode in modes}
        fetched = len(ids) // CHUNK * CHUNK
        layers = has.origin.layers[1]
        size = layers * asks.shape.layer_bytes(fetched, "int8")
        link = asks.endpoint.links()[0].status
        assert asks._loaded is not None
        rest = compute_seconds(asks._loaded.costs, fetched, len(ids))
        return Outcome(firsts, size / self.rate + (link.rtt or 0.0) + rest)


class partial_program:
    """Program of a simulated host that calls a function."""

    def __init__(self, function: Callable[..., Awaitable[None]], number: int) -> None:
        self._function = function
        self._number = number

    async def run(self, computer: Computer, *, task_status: "trio.TaskStatus[Any]") -> None:
        await self._function(self._number, computer, task_status=task_status)


def measured(rate: float, tokens_per_s: float, tokens: int) -> Outcome:
    """Measure each mode in a world of its own, so that all begin with a new connection: it becomes
    fast only with the bytes that it carries."""
    outcomes = [Simulated(rate, tokens_per_s, tokens).run(mode) for mode in MODES]
    firsts = {mode: each.firsts[mode] for mode, each in zip(MODES, outcomes, strict=True)}
    return Outcome(firsts, outcomes[0].ideal)


def first_part(tokens: int) -> dict[str, Any]:
    """Measure the fetch of a 1.1 B model's chunks over 100 Mbit/s."""
    found = measured(RATE, TOKENS_PER_S, tokens)
    chosen = found.firsts["choice"]
    return {
        "value": round(chosen.seconds / found.ideal, 3),
        "ideal_s": round(found.ideal, 2),
        **{f"{mode}_s": round(found.firsts[mode].seconds, 2) for mode in MODES},
        "positions": chosen.cached,
        "speedup": round(found.firsts["compute"].seconds / chosen.seconds, 1),
    }


def grid(rates: list[float], speeds: list[float], tokens: int) -> dict[str, Any]:
    """Compare the choice with the better of both ways, over rates in Mbit/s and machines."""
    cells = []
    for rate in rates:
        for speed in speeds:
            found = measured(rate * 1e6 / 8, speed, tokens)
            times = {mode: found.firsts[mode].seconds for mode in MODES}
            ratio = times["choice"] / min(times["fetch"], times["compute"])
            cells.append(
                {"mbit": rate, "tokens_per_s": speed, "ratio": round(ratio, 3)}
                | {mode: round(seconds, 2) for mode, seconds in times.items()}
            )
    return {"grid": max(cell["ratio"] for cell in cells), "cells": cells}


def chains(rates: list[float], speeds: list[float], tokens: int) -> dict[str, Any]:
    """Do the same over a chain of two stages, and compare with fetching first, too."""
    cells, ids = [], prompt(tokens, 1)
    layers = architecture(config("1.1B")).layers
    for rate in rates:
        for speed in speeds:
            line = rate * 1e6 / 8
            times = dict[str, float]()
            for mode in CHAIN_MODES:
                chain = ChunkChain((line, line), slowed(speed), invented, layers, delay=DELAY)
                times[mode] = chain.run(mode, ids).seconds
            ratio = times["choice"] / min(times["fetch"], times["compute"])
            before = times["choice"] / times["first"]
            cells.append(
                {"mbit": rate, "tokens_per_s": speed, "ratio": round(ratio, 3)}
                | {"before": round(before, 3)}
                | {mode: round(seconds, 2) for mode, seconds in times.items()}
            )
    return {
        "chain": max(cell["ratio"] for cell in cells),
        "chain_first": max(cell["before"] for cell in cells),
        "chain_cells": cells,
    }


def embedded(folder: Path) -> LoadShard:
    """Write the embedded model's tensors as chunk files, and return the command that loads it."""
    from safetensors.torch import load_file

    settings = json.loads((embedded_folder() / "config.json").read_text())
    arch = architecture(settings)
    parts = Parts(True, 0, arch.layers, True)
    needed = tensor_shapes(arch, parts)
    tensors = load_file(embedded_folder() / "model.safetensors")
    sources = []
    for role, tensor in tensors.items():
        tied = [role, "lm_head.weight"] if role == "model.embed_tokens.weight" else [role]
        roles = tuple(each for each in tied if each in needed)
        sources.append(write_tensor(folder, roles, tensor))
    return LoadShard("ab" * 32, parts, settings, tuple(sources), "float32", 1 << 27)


async def real(tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Measure two real engines over loopback."""
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        shard = await trio.to_thread.run_sync(embedded, Path(folder))
        host = RealHost()
        nodes = [ChunkNode(host, seed, EngineProcess(host, threads=threads)) for seed in (1, 2)]
        async with (
            serving(nodes[0], "127.0.0.1", 0) as has,
            serving(nodes[1], "127.0.0.1", 0) as asks,
        ):
            for node in nodes:
                await node.load(shard)
            await asks.dial(Address("127.0.0.1", has.endpoint.port, has.identity.peer))
            random = Random(1)
            cached = 0
            for _ in range(rounds + 1):  # the first one warms up
                ids = tuple(random.randrange(2048) for _ in range(tokens))
                await has.ask(ids, "compute", keep=True)
                firsts = {mode: await asks.ask(ids, mode, exact=True) for mode in MODES}
                assert len({first.token for first in firsts.values()}) == 1
                cached = firsts["choice"].cached
                for mode, first in firsts.items():
                    times[mode].append(first.seconds)
    middle = {mode: statistics.median(seconds[1:]) for mode, seconds in times.items()}
    ratio = middle["choice"] / min(middle["fetch"], middle["compute"])
    shown = {f"real_{mode}_ms": round(1e3 * seconds, 1) for mode, seconds in middle.items()}
    return {"real": round(ratio, 3), "real_positions": cached} | shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter prompts, a smaller grid")
    parser.add_argument("--threads", type=int, default=1, help="threads of each real engine")
    args = parser.parse_args()
    tokens, rounds = (1000, 3) if args.quick else (4000, 11)
    found = first_part(tokens)
    print(json.dumps(found), file=sys.stderr)
    found |= trio.run(real, 900, rounds, args.threads)
    print(json.dumps(found), file=sys.stderr)
    rates = [2.0, 20.0] if args.quick else [1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
    speeds = [91.0] if args.quick else [30.0, 91.0, 1000.0]
    found |= grid(rates, speeds, 600 if args.quick else 1500)
    found |= chains(rates, speeds, 600 if args.quick else 1500)
    goals = {"value": GOAL, "real": NEAR, "grid": NEAR, "chain": NEAR}
    ok = all(found[name] <= goal for name, goal in goals.items())
    print(json.dumps({"name": "kv_fetch", "goal": goals, "ok": ok} | found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
