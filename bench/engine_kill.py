"""Engine workers killed during answers: is each answer complete and the same, and how long is the
pause?

In the simulator, whole daemons answer a prompt with 100 tokens, with 1 and with 3 stages and from a
gateway without an engine. A worker is killed when the head has computed token 0, 1, ... 100, a
random part of a token later. With 3 stages, each of them is killed in turn. Then real daemons on
this machine do the same with the embedded model in float32. There, `kill -9` comes when a part
of the text has arrived; the parts are spread evenly over the answer.

`value` is the percentage of answers with 100 tokens and the text of an undisturbed answer; goal
100. `pause_s` is the longest additional time of an answer: the restart, loading, and computing the
tokens again. Its goal is 5, because this model loads in a fraction of a second. No other worker and
no daemon may end. `--real N` sets the number of real kills (30; 0 skips them). `--quick` is every
20th token and 2 real kills.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from shoal.cli.client import request
from shoal.cli.errors import CommandError
from shoal.cli.swarm import LocalSwarm
from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.world import World
from shoal.node.control.messages.generation import Run, TextEvent, TextPiece
from shoal.node.control.messages.node import Status
from shoal.node.errors import ControlError
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    EngineEvent,
    SessionId,
    SessionTerms,
    TokenEvent,
)
from shoal.transport.host.seam import Host

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport", "cli")

PROMPT: Final = "Once upon a time"
TOKENS: Final = 100
SAMPLING: Final[dict[str, Any]] = {"temperature": 0.8, "seed": 1}
SPLITS: Final = {1: ((0, 6),), 3: ((0, 2), (2, 4), (4, 6))}
GOALS: Final = {"value": 100.0, "pause_s": 5.0}
SETTLE_S: Final = 3.0  # virtual seconds between two answers
START_S: Final = 120.0  # seconds for real daemons to start, or to serve again
WORKER: Final = b"shoal.tasks.engine.worker"


@dataclass(slots=True)
class Tally:
    """Results of the answers of one kind of swarm."""

    asked: int = 0
    right: int = 0
    pauses: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def add(self, right: bool, pause: float, what: str) -> None:
        """Count an answer. `what` describes the kill, for an answer that is wrong."""
        self.asked += 1
        self.right += right
        self.pauses.append(pause)
        if not right:
            self.troubles.append(what)

    def figures(self) -> dict[str, Any]:
        """Return the figures for the last line."""
        ordered = sorted(self.pauses)
        return {
            "kills": self.asked,
            "right": self.right,
            "pause_median_s": round(ordered[len(ordered) // 2], 2),
            "pause_s": round(ordered[-1], 2),
            "troubles": self.troubles[:5],
        }


# In the simulator.


class CountingEngine(SimulatedEngine):
    """Simulated engine that reports when it has computed a token for any session."""

    def __init__(self, host: Host, threads: int, memory: int) -> None:
        assert isinstance(host, SimulatedHost)
        super().__init__(host, threads, memory, "numbers")
        self.count: Callable[[], None] = lambda: None

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        def counted(event: EngineEvent) -> None:
            on_event(event)
            if isinstance(event, TokenEvent):
                self.count()

        return await super().open(session, tokens, counted, terms)


async def answer(asker: DaemonHandle) -> tuple[str, int, float]:
    """Return (text, number of tokens, seconds) of an answer, with the error as text if it fails."""
    began = trio.current_time()
    try:
        said = await asker.generate(PROMPT, max_tokens=TOKENS, raw=True, **SAMPLING)
    except ControlError as error:
        return f"{error.code}: {error.message}", 0, trio.current_time() - began
    return str(said["text"]), int(said["tokens"]), trio.current_time() - began


async def killed(
    asker: DaemonHandle, stages: Sequence[DaemonHandle], victim: int, at: int, lag: float
) -> tuple[str, int, float]:
    """Return an answer as `answer` does, during which a worker is killed.

    `victim` is the number of its stage. It is killed `lag` seconds after token `at`.
    """
    now, made = trio.Event(), 0
    head = stages[-1].engine
    assert isinstance(head, CountingEngine)

    def count() -> None:
        nonlocal made
        made += 1
        if made == at:
            now.set()

    async def kill() -> None:
        await now.wait()
        await trio.sleep(lag)
        stages[victim].engine.crash()

    head.count = count
    if at == 0:  # the prompt is on its way
        now.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        found = await answer(asker)
    head.count = lambda: None
    return found


async def simulate(world: World, count: int, step: int, rng: Random) -> Tally:
    """Kill each stage at each `step`th token of an answer over `count` stages."""
    tally, stages = Tally(), list[DaemonHandle]()
    for number, layers in enumerate(SPLITS[count]):
        model: dict[str, Any] = {"bootstrap": stages[:1], "model": "tiny"} if stages else {}
        host = world.host(f"stage{number}")
        stages.append(await host.start(layers=layers, engine=CountingEngine, **model))
        await stages[-1].serving()
    asker = await world.host("asker").start(bootstrap=stages[:1], engine=False)
    for daemon in (*stages, asker):
        await daemon.until(lambda status: status["peers"] == count)
    await answer(asker)  # starts the text process
    text, tokens, took = await answer(asker)
    assert tokens == TOKENS, text
    for at in range(0, TOKENS + 1, step):
        for victim in range(count):
            pids = [daemon.engine.pid for daemon in stages]
            lag = rng.random() * took / TOKENS
            said, made, longer = await killed(asker, stages, victim, at, lag)
            for daemon in stages:
                await daemon.serving()
            others = [n for n in range(count) if n != victim and stages[n].engine.pid != pids[n]]
            right = (said, made) == (text, TOKENS) and not others
            what = f"stage {victim + 1} of {count} at token {at}: {said[:80]!r}, ended: {others}"
            tally.add(right, longer - took, what)
            await trio.sleep(SETTLE_S)
    return tally


# With real daemons.


def workers(pid: int) -> list[int]:
    """Return the pids of the engine's workers among the children of a daemon."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            with suppress(OSError):  # it has ended
                if WORKER in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    found.append(child)
    return found


class Killer:
    """Receiver of an answer's events that kills workers when some of the text has arrived."""

    def __init__(self, pids: Sequence[int] = (), characters: int = 0) -> None:
        self._pids = pids
        self._left = characters

    def __call__(self, event: TextEvent) -> None:
        """Count the text of an event. The first event names the chain and has none."""
        self._left -= len(event.text) if isinstance(event, TextPiece) else 0
        if self._left <= 0:
            for pid in self._pids:
                os.kill(pid, signal.SIGKILL)
            self._pids = ()


def real_answer(swarm: LocalSwarm, killer: Callable[[TextEvent], None]) -> tuple[str, int, float]:
    """Return an answer of real daemons as `answer` does."""
    ask = Run(model="tiny", prompt=PROMPT, raw=True, max_tokens=TOKENS, **SAMPLING)
    began = time.monotonic()
    try:
        said = request(swarm.nodes[0].data, ask, on_event=killer, wait=True)
    except CommandError as error:
        return f"{error.code}: {error.message}", 0, time.monotonic() - began
    return said.text, said.tokens, time.monotonic() - began


def ready(found: list[Status | None]) -> bool:
    """Return whether all daemons serve and the first one knows the others."""
    return all(
        each is not None and each.serving.phase == "serving" and each.peers == len(found) - 1
        for each in found
    ) and any(model.complete for each in found if each for model in each.models)


def settled(swarm: LocalSwarm) -> list[Status]:
    """Wait until all daemons serve, each with a worker, and return their status."""
    found = swarm.wait_for(ready, lambda found: None, time.monotonic() + START_S)
    while not all(workers(node.pid) for node in swarm.nodes):
        time.sleep(0.05)
    return found


def start(swarm: LocalSwarm, count: int) -> None:
    """Start the daemons, the first one alone, because it has the address for the others."""
    common = ["--listen", "127.0.0.1:0", "--threads", "1", "--dtype", "float32", "--layers"]
    for number, (first, stop) in enumerate(SPLITS[count]):
        more = []
        if number:
            (one,) = swarm.wait_for(
                lambda found: found[0] is not None and bool(found[0].addresses),
                lambda found: None,
                time.monotonic() + START_S,
            )[:1]
            more = ["--bootstrap", one.addresses[0], "--model", "tiny"]
        swarm.start([*common, f"{first}:{stop}", *more])
    settled(swarm)


def kill_real(count: int, kills: int) -> Tally:
    """Kill real workers at different parts of the answers."""
    tally = Tally()
    with LocalSwarm() as swarm:
        start(swarm, count)
        whole = [real_answer(swarm, Killer()) for _ in range(4)]
        text, tokens, took = min(whole, key=lambda each: each[2])
        assert tokens == TOKENS, text
        for number in range(kills):
            victim = swarm.nodes[number % count]
            before = {node.pid: workers(node.pid) for node in swarm.nodes}
            at = len(text) * number // kills
            said, made, longer = real_answer(swarm, Killer(before[victim.pid], at))
            settled(swarm)
            replaced = [node for node in swarm.nodes if workers(node.pid) != before[node.pid]]
            right = (said, made) == (text, TOKENS) and replaced == [victim]
            what = f"stage {number % count + 1} of {count} after {at} characters: {said[:80]!r}"
            tally.add(right, longer - took, what)
            print(f"{what}, {longer - took:.2f} s longer", file=sys.stderr)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="every 20th token, 2 real kills")
    parser.add_argument("--real", type=int, metavar="N", help="real kills (30; 0: none)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments within a token")
    args = parser.parse_args()
    real = args.real if args.real is not None else (2 if args.quick else 30)
    step, tallies = 20 if args.quick else 1, dict[str, Tally]()
    for count in SPLITS:
        world, rng = World(seed=args.seed), Random(args.seed)
        name = f"simulated_{count}"
        tallies[name] = world.run(partial(simulate, world, count, step, rng))
        print(f"{name}: {tallies[name].figures()}", file=sys.stderr)
    for count in SPLITS if real else ():
        tallies[f"real_{count}"] = kill_real(count, max(1, real // len(SPLITS)))
    asked = sum(tally.asked for tally in tallies.values())
    right = sum(tally.right for tally in tallies.values())
    pause = max(max(tally.pauses) for tally in tallies.values())
    value = round(100 * right / asked, 2)
    ok = right == asked and pause <= GOALS["pause_s"]
    head = {"name": "engine_kill", "value": value, "goal": GOALS["value"], "ok": ok, "goals": GOALS}
    figures = {name: tally.figures() for name, tally in tallies.items()}
    print(json.dumps(head | {"pause_s": round(pause, 2), "seeds": [args.seed]} | figures))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
