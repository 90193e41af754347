"""Stages killed, stopped and crashed at every token of an answer: is each answer complete, with the
same text?

In the simulator, whole daemons answer a prompt with 200 tokens over three stages, each of which has
a replica. When the head has computed token 0, 1, ... 200, and a random part of a token later, a
stage has one of four faults: its power is cut, its daemon is stopped (SIGSTOP), its engine's worker
ends, or the worker is stopped. Each of the three stages has each fault in turn. Then real daemons
on this machine have the same faults, with the embedded model in float32 and two replicas of each
half of it, when a part of the text has arrived.

`value` is the percentage of answers that are complete and have the text of an undisturbed answer;
goal 100. `pause_s` is the longest time without text after a fault, for information. `--real N`
sets the number of real faults (50; 0 skips them). `--quick` is every 30th of 60 tokens and 4 real
faults.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from engine_kill import START_S, real_answer, workers
from worlds.survival import FAULTS, LAYERS, Chain, Fault, percentile

from shoal.cli.swarm import LocalNode, LocalSwarm
from shoal.netsim.world import World
from shoal.node.control.messages.generation import TextEvent, TextPiece
from shoal.node.control.messages.node import Status

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport", "cli")

PROMPT: Final = "Once upon a time"
TOKENS: Final = 200
QUICK: Final = 60
GOALS: Final = {"value": 100.0}
HALVES: Final = ("0:3", "3:6", "0:3", "3:6")


@dataclass(slots=True)
class Tally:
    """Results of the answers with one kind of fault."""

    asked: int = 0
    right: int = 0
    pauses: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def add(self, right: bool, pause: float, what: str) -> None:
        """Count an answer. `what` describes the fault, for an answer that is wrong."""
        self.asked += 1
        self.right += right
        self.pauses.append(pause)
        if not right:
            self.troubles.append(what)

    def figures(self) -> dict[str, Any]:
        """Return the figures for the last line."""
        return {
            "faults": self.asked,
            "right": self.right,
            "pause_median_s": round(percentile(self.pauses, 0.5), 2),
            "pause_s": round(max(self.pauses), 2),
            "troubles": self.troubles[:5],
        }


async def simulate(world: World, fault: Fault, tokens: int, step: int, rng: Random) -> Tally:
    """Let each stage have a fault at each `step`th of the tokens of an answer."""
    chain = Chain(world, rng, PROMPT, tokens)
    await chain.start()
    whole = await chain.ask()
    assert whole.tokens == tokens, whole.text
    tally = Tally()
    for at in range(0, tokens + 1, step):
        for place in range(len(LAYERS)):
            lag = rng.random() * whole.seconds / tokens
            told, when = await chain.disturbed(fault, place, at, lag)
            right = (told.text, told.tokens) == (whole.text, tokens)
            what = f"{fault} of stage {place + 1} at token {at}: {told.text[:80]!r}"
            tally.add(right, told.pause(when), what)
    return tally


# With real daemons.


class Trigger:
    """Receiver of an answer's events that calls `deed` when some of the text has arrived."""

    def __init__(self, characters: int, deed: Callable[[], None]) -> None:
        self._left = characters
        self._deed: Callable[[], None] | None = deed

    def __call__(self, event: TextEvent) -> None:
        """Count the text of an event. The first event names the chain and has none."""
        self._left -= len(event.text) if isinstance(event, TextPiece) else 0
        deed = self._deed
        if self._left <= 0 and deed is not None:
            self._deed = None
            deed()


def ready(found: list[Status | None]) -> bool:
    """Return whether all daemons that answer serve and know each other."""
    return all(
        each is not None and each.serving.phase in ("serving", "gateway") for each in found
    ) and all(each.peers == len(found) - 1 for each in found if each)


class Real:
    """Real daemons: one that asks, and two for each half of the model."""

    def __init__(self, swarm: LocalSwarm) -> None:
        self._swarm = swarm
        self._arguments: dict[int, list[str]] = {}
        self._common = ["--listen", "127.0.0.1:0", "--threads", "1", "--dtype", "float32"]

    def start(self) -> None:
        """Start all daemons, the first one alone, because it has the address for the others."""
        self._begin(["--layers", HALVES[0]])
        (one,) = self._swarm.wait_for(
            lambda found: found[0] is not None and bool(found[0].addresses),
            lambda found: None,
            time.monotonic() + START_S,
        )
        self._join = ["--bootstrap", one.addresses[0], "--model", "tiny"]
        for layers in HALVES[1:]:
            self._begin([*self._join, "--layers", layers])
        self.settle()

    def _begin(self, arguments: list[str]) -> LocalNode:
        node = self._swarm.start([*self._common, *arguments])
        self._arguments[id(node)] = arguments
        return node

    def settle(self) -> None:
        """Wait until all daemons serve, each with a worker."""
        self._swarm.wait_for(ready, lambda found: None, time.monotonic() + START_S)
        while not all(workers(node.pid) for node in self._swarm.nodes):
            time.sleep(0.05)

    def harm(self, fault: Fault, node: LocalNode) -> None:
        """Let a fault happen to a daemon."""
        if fault == "power":
            os.killpg(node.pid, signal.SIGKILL)
        elif fault == "stopped":
            os.kill(node.pid, signal.SIGSTOP)
        else:
            what = signal.SIGKILL if fault == "crash" else signal.SIGSTOP
            for pid in workers(node.pid):
                os.kill(pid, what)

    def repair(self, fault: Fault, node: LocalNode) -> None:
        """End a fault, and wait until all daemons serve."""
        if fault == "power":
            self._swarm.nodes.remove(node)
            node.wait_stopped(time.monotonic())
            again = self._begin(self._arguments.pop(id(node)))
            self._swarm.nodes.remove(again)
            self._swarm.nodes.append(again)
        elif fault == "stopped":
            os.kill(node.pid, signal.SIGCONT)
        elif fault == "hung":
            time.sleep(12)  # until its daemon has killed it
        self.settle()


def kill_real(faults: int) -> Tally:
    """Let real stages have faults at different parts of the answers."""
    tally = Tally()
    with LocalSwarm() as swarm:
        real = Real(swarm)
        real.start()
        text, tokens, took = real_answer(swarm, Trigger(10**9, lambda: None))
        assert tokens, text
        for number in range(faults):
            fault = FAULTS[number % len(FAULTS)]
            victim = swarm.nodes[1 + number % (len(swarm.nodes) - 1)]
            at = len(text) * number // faults
            deed = partial(real.harm, fault, victim)
            said, made, longer = real_answer(swarm, Trigger(at, deed))
            what = f"{fault} of node {victim.number} after {at} characters: {said[:80]!r}"
            tally.add((said, made) == (text, tokens), longer - took, what)
            print(f"{what}, {longer - took:.2f} s longer", file=sys.stderr)
            real.repair(fault, victim)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run with 4 real faults")
    parser.add_argument("--real", type=int, metavar="N", help="real faults (50; 0: none)")
    parser.add_argument("--step", type=int, help="tokens between two simulated faults (1)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments within a token")
    args = parser.parse_args()
    real = args.real if args.real is not None else (4 if args.quick else 50)
    tokens = QUICK if args.quick else TOKENS
    step, tallies = args.step or (30 if args.quick else 1), dict[str, Tally]()
    for fault in FAULTS:
        world = World(seed=args.seed)
        tallies[fault] = world.run(partial(simulate, world, fault, tokens, step, Random(args.seed)))
        print(f"{fault}: {tallies[fault].figures()}", file=sys.stderr)
    if real:
        tallies["real"] = kill_real(real)
    asked = sum(tally.asked for tally in tallies.values())
    right = sum(tally.right for tally in tallies.values())
    value = round(100 * right / asked, 3)
    ok = value >= GOALS["value"]
    head = {"name": "ring_kill", "value": value, "goal": GOALS["value"], "ok": ok, "goals": GOALS}
    pause = max(max(tally.pauses) for tally in tallies.values())
    figures = {name: tally.figures() for name, tally in tallies.items()}
    print(json.dumps(head | {"pause_s": round(pause, 2), "seeds": [args.seed]} | figures))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
