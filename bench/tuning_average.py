"""Averaging 10 M float32 values over 4 peers on loopback, compared with hivemind 1.1.12.

Each peer is a process of its own, on both sides. A round begins once all peers have their values,
and ends when the last of them has the mean. The script's own work, which is to make the values and
to check the mean, is not timed. Ours is a whole round of `Averager`: facts in signed
feeds on disk, updates of 40 MB that are fetched from each other over TLS and verified, checks by
norm, signatures on the step, and an outer step with momentum. The root of the new state of 80 MB,
which no round waits for, is computed before the other side's round begins. Hivemind's is one
`DecentralizedAverager.step`: matchmaking and an all-reduce. Both send float32. Rounds of both sides
alternate; the first three of each are not counted, because both use their memory again later.

`value` is hivemind's median seconds divided by ours; goal: above 1. `int8` has the same for int8 on
both sides. `ours_cpu_s` and `hivemind_cpu_s` are the CPU seconds of all processes in a round.
Hivemind gets an environment of its own below the cache folder, unless --hivemind or
SHOAL_BENCH_HIVEMIND names a Python that has it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, Protocol

import numpy as np
import trio
from worlds import others

from shoal.state.service import State
from shoal.state.settings import StateSettings
from shoal.tasks.tuning.averaging.averager import Averager, AveragingNode
from shoal.tasks.tuning.averaging.codecs import CODECS, Codec, CodecName, Vector
from shoal.tasks.tuning.averaging.defaults import INT8_BLOCK
from shoal.tasks.tuning.averaging.parcels import Parcels
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

MEASURES = (
    "tasks/tuning/averaging", "transport", "state", "bench/peers/hivemind_side.py",
)  # fmt: skip

VALUES: Final = 10_000_000
PEERS: Final = 4
WARM: Final = 3  # rounds that are not counted
LOOPBACK: Final = "127.0.0.1"
SIDE: Final = Path(__file__).parent / "peers" / "hivemind_side.py"


# One peer of ours, in a process of its own.


def terms_of(codec: CodecName) -> RunTerms:
    return RunTerms(
        name="bench", subject=b"", values=VALUES, codec=Codec(codec), inner_steps=1, least=PEERS
    )


async def peer(number: int, codec: CodecName, folder: Path) -> None:
    """Print the address, link to the addresses in the first line of the input, and then follow the
    protocol of `hivemind_side.py`."""
    host = RealHost()
    identity = Identity.generate(host)
    endpoint = Endpoint(host, identity, admission=OpenSwarm())

    async def connect(peer: PeerId) -> Link:
        link = endpoint.link(peer)
        assert link is not None
        return link

    parcels = Parcels(host, endpoint, connect)
    state = State(host, endpoint, identity, StateSettings(folder, hold=0.0), trouble=_trouble)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(endpoint.run, LOOPBACK, 0)
        await nursery.start(state.run)
        print(port, flush=True)
        for text in (await _line()).split():
            (await endpoint.dial(Address(LOOPBACK, int(text)), timeout=10)).keep()
        node = AveragingNode(host, state, identity.peer, parcels)
        start = np.zeros(VALUES, np.float32)
        averager = Averager(node, terms_of(codec), start)
        await nursery.start(averager.run)
        await _line()
        print("ready", flush=True)
        values = Values(averager, number)
        while await _line():
            values.make()
            print("made", flush=True)
            await _line()
            print(await values.average(), flush=True)
            await _line()
            print(values.off(), flush=True)
        nursery.cancel_scope.cancel()


class Values:
    """A peer's values, which depend on its number, the round and their index. They stay in the same
    memory."""

    def __init__(self, averager: Averager, number: int) -> None:
        self.averager = averager
        self.number = number
        block = np.arange(INT8_BLOCK, dtype=np.float32) / np.float32(INT8_BLOCK)
        self.ramp: Vector = np.resize(block, VALUES)
        self.mine: Vector = np.zeros(VALUES, np.float32)
        self.before: Vector = np.zeros(VALUES, np.float32)

    def make(self) -> None:
        base = self.averager.base
        np.subtract(base.values, self.ramp, out=self.mine)
        # No two updates are equal, because an equal one would not be fetched again.
        self.mine -= np.float32(self.number + 1 + PEERS * base.round)
        assert base.state.momentum is not None
        self.before[:] = base.state.momentum

    async def average(self) -> float:
        """Return the elapsed seconds, once the new state's root is published."""
        began = time.perf_counter()
        await self.averager.exchange(self.averager.base, self.mine, 1)
        took = time.perf_counter() - began
        while not self.averager.rounds.root:  # noqa: ASYNC110
            await trio.sleep(0.01)
        return took

    def off(self) -> float:
        """Return the largest difference to the right mean, infinity if an update is missing."""
        base = self.averager.base
        step = self.averager.rounds.ledger.get(base.step)
        if step is None or len(step.accepted) < PEERS or base.state.momentum is None:
            return float("inf")
        self.before *= np.float32(-0.9)
        self.before += base.state.momentum  # now the mean
        self.before -= self.ramp
        self.before -= np.float32((PEERS + 1) / 2 + PEERS * (base.round - 1))
        return float(max(self.before.max(), -self.before.min()))


def _trouble(condition: str, error: Exception | None) -> None:
    if error is not None:
        print(condition, error, file=sys.stderr)


async def _line() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


# Both sides.


class Side(Protocol):
    """Peers that average together."""

    def round(self) -> tuple[float, float, float]:
        """Return the seconds of the slowest peer, the CPU seconds of all, the largest error."""
        ...


class Processes:
    """Peers that are processes with the protocol of `hivemind_side.py`."""

    def __init__(self, children: Sequence[subprocess.Popen[str]]) -> None:
        self.children = children

    def tell(self, line: str) -> list[str]:
        """Give all peers a line, and return their replies."""
        for child in self.children:
            say(child, line)
        return [heard(child) for child in self.children]

    def round(self) -> tuple[float, float, float]:
        self.tell("make")
        before = sum(cpu_of(child.pid) for child in self.children)
        seconds = max(map(float, self.tell("average")))
        cpu = sum(cpu_of(child.pid) for child in self.children) - before
        return seconds, cpu, max(map(float, self.tell("check")))


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process and of all its living descendants (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    of_threads = Path(f"/proc/{process}/task").glob("*/children")
    return own + sum(
        cpu_of(int(child)) for each in of_threads for child in each.read_text().split()
    )


def say(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def heard(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        raise RuntimeError("a peer has ended")
    return line


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a peer; end it with its children, of which hivemind has several."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@contextmanager
def ours(codec: CodecName, folder: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        children, ports = list[subprocess.Popen[str]](), list[str]()
        for number in range(PEERS):
            own = folder / f"{codec}{number}"
            own.mkdir()
            child = stack.enter_context(
                started(sys.executable, __file__, "--peer", str(number), codec, str(own))
            )
            children.append(child)
            port = heard(child)
            say(child, " ".join(ports))
            ports.append(port)
        found = Processes(children)
        time.sleep(2)  # until each knows the others
        found.tell("")
        yield found


@contextmanager
def theirs(python: str, codec: CodecName) -> Iterator[Processes]:
    with ExitStack() as stack:
        children, first = list[subprocess.Popen[str]](), ""
        for number in range(PEERS):
            child = stack.enter_context(
                started(python, str(SIDE), str(VALUES), str(PEERS), str(number), codec, first)
            )
            address = heard(child)
            first = first or address
            children.append(child)
        found = Processes(children)
        found.tell("")
        yield found


def compare(python: str, codec: CodecName, rounds: int, folder: Path) -> dict[str, object]:
    """Return the figures of both sides with one codec."""
    seconds: dict[str, list[tuple[float, float, float]]] = {"ours": [], "hivemind": []}
    with ours(codec, folder) as us, theirs(python, codec) as them:
        sides: dict[str, Side] = {"ours": us, "hivemind": them}
        for _ in range(WARM + rounds):
            for name, side in sides.items():
                seconds[name].append(side.round())
    shown: dict[str, object] = {}
    for name, rows in seconds.items():
        shown[f"{name}_s"] = [round(row[0], 3) for row in rows[WARM:]]
        shown[f"{name}_error"] = max(row[2] for row in rows)
        shown[f"{name}_cpu_s"] = round(median(row[1] for row in rows[WARM:]), 2)
    medians = {name: median(row[0] for row in rows[WARM:]) for name, rows in seconds.items()}
    shown["ratio"] = round(medians["hivemind"] / medians["ours"], 3)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="float32 only, fewer rounds")
    others.option(parser, "hivemind")
    parser.add_argument("--codec", choices=CODECS[:2], help="this codec only")
    parser.add_argument("--peer", nargs=3, metavar="ARG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        number, codec, folder = args.peer
        trio.run(peer, int(number), codec, Path(folder))
        return 0
    python = others.python("hivemind", args.hivemind)
    codecs: Sequence[CodecName] = ("float32",) if args.quick else ("float32", "int8")
    rounds = 3 if args.quick else 8
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for codec in [args.codec] if args.codec else codecs:
            figures[codec] = compare(python, codec, rounds, Path(name))
    value = figures.get("float32", figures.get("int8", {}))["ratio"]
    assert isinstance(value, float)
    result = {"name": "tuning_average", "value": value, "goal": 1.0, "ok": value > 1.0, **figures}
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
