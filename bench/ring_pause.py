"""How soon a hung or dead stage is noticed, and how long the pause is until the text goes on.

Simulated daemons serve a chain of three stages, each with a replica. At random tokens of long
answers, a stage has one of four faults (`worlds/survival.py`). `noticed_s` is the longest time for
which the client waits on the stage until the gateway replaces it or its daemon reports it; goal:
the larger of 1 s and 8 times the usual time between two tokens, plus 0.25 s, because a worker is
looked at ten times a second and news takes a round trip. The client waits since the fault, or since
the last text that the later stages made of what they had got before. `since_fault_s` is the same
from the fault on. `value` is the 99th percentile of the time from then until the next text in
seconds; goal 1. The state of a short context is rebuilt by replay, and a long one has standbys;
faults happen when these have caught up with the prompt.

`growth` is the mean pause at 8,000 positions divided by that at 1,000; goal 1.2. With `--long N`,
also one at N positions is measured. `--quick` has 12 faults at 200 and 800 positions.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import trio
from worlds.longcontext import lengthen
from worlds.survival import FAULTS, LAYERS, Chain, Fault, percentile

from shoal.netsim.world import World
from shoal.tasks.inference.conversation.replacing import Replacing
from shoal.tasks.inference.names import PrefixNames

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

TOKENS: Final = 200
SLOWER: Final = 20.0  # so that the small model takes as long as one of 200 M on a desktop
FROM: Final = (130, 190)  # tokens at which stages have faults: until then, standbys have the rest
LEAST_S: Final = 1.0  # for which a stage may be silent
GOALS: Final = {"value": 1.0, "late_s": 0.25, "growth": 1.2}


@dataclass(slots=True)
class Pauses:
    """Times in seconds of all faults at one length of the context."""

    late: list[float] = field(default_factory=list)  # beyond the deadline
    noticed: list[float] = field(default_factory=list)
    since_fault: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)  # from then until the next text
    wrong: int = 0


class Notices:
    """Times at which gateways begin to replace stages."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.usual = 0.0

    def watch(self) -> None:
        """Note each replacement from now on, with the time that the chain took for a token."""
        move, notices = Replacing.move, self

        async def noted(replacing: Replacing, talk: Any, before: Any, error: Any = None) -> bool:
            notices.at.append(trio.current_time())
            notices.usual = before.pace.deadline / 8
            return await move(replacing, talk, before, error)

        setattr(Replacing, "move", noted)  # noqa: B010  (a bench notes what the class does)


async def measure(
    world: World, notices: Notices, positions: int, faults: int, rng: Random
) -> Pauses:
    """Measure the pauses of answers to a prompt of that many positions."""
    words = " ".join("word" for _ in range(positions))  # a token each
    chain = Chain(world, rng, words, TOKENS, slower=SLOWER)
    await chain.start()
    whole = await chain.ask()
    assert whole.tokens == TOKENS, whole.text
    found, missed = Pauses(), 0
    for number in count():
        if len(found.late) == faults:
            break
        fault: Fault = FAULTS[number % len(FAULTS)]
        place = (number // len(FAULTS)) % len(LAYERS)
        notices.at.clear()
        names = chain.asker.node.compute.gateway._chains
        names._names = PrefixNames(rng.randbytes(32))  # no stage has the prompt cached
        told, when = await chain.disturbed(fault, place, rng.randrange(*FROM), 0.001)
        found.wrong += told.text != whole.text
        noticed_at = [at for at in notices.at if at >= when]
        if not noticed_at and told.pause(when) < LEAST_S:
            # The stage had computed all of its part before its standbys had caught up.
            assert (missed := missed + 1) < 6 * faults, "standbys never catch up"
            continue
        noticed = next(iter(noticed_at), when + told.pause(when))
        after = next((at for at in told.times if at > noticed), noticed)
        found.noticed.append(noticed - told.waits(when, noticed))
        found.since_fault.append(noticed - when)
        found.late.append(found.noticed[-1] - max(LEAST_S, 8 * notices.usual))
        found.resumed.append(after - noticed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="12 faults at short contexts")
    parser.add_argument("--faults", type=int, help="faults at each length (120)")
    parser.add_argument("--long", type=int, metavar="N", help="also measure at N positions")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    faults = args.faults or (12 if args.quick else 120)
    lengths = [200, 800] if args.quick else [1000, 8000]
    lengths += [args.long] if args.long else []
    notices, found = Notices(), dict[int, Pauses]()
    notices.watch()
    lengthen(2 * max(lengths))
    for positions in lengths:
        world = World(seed=args.seed)
        body = partial(measure, world, notices, positions, faults, Random(args.seed))
        found[positions] = world.run(body)
        print(f"{positions} positions: {found[positions]}", file=sys.stderr)
    resumed = [each for pauses in found.values() for each in pauses.resumed]
    late = max(each for pauses in found.values() for each in pauses.late)
    means = [sum(found[each].resumed) / faults for each in lengths[:2]]
    growth = means[1] / means[0]
    value = percentile(resumed, 0.99)
    wrong = sum(pauses.wrong for pauses in found.values())
    ok = value <= 1.0 and late <= GOALS["late_s"] and growth <= GOALS["growth"] and not wrong
    print(json.dumps({
        "name": "ring_pause", "value": round(value, 3), "goal": GOALS["value"], "ok": ok,
        "goals": GOALS, "growth": round(growth, 2), "late_s": round(late, 3), "wrong": wrong,
        "noticed_s": {n: round(max(each.noticed), 3) for n, each in found.items()},
        "since_fault_s": {n: round(max(each.since_fault), 3) for n, each in found.items()},
        "resumed_s": {n: round(max(each.resumed), 3) for n, each in found.items()},
        "positions": lengths, "faults": faults, "seeds": [args.seed],
    }))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
