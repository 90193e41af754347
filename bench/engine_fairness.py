"""Device time of a gateway with 50 sessions beside one with a single session, of equal weights.

The single session always has a prompt to compute, and the 50 compute prompts, or generate text, or
one half of them each (`mix`). Both gateways want all of the device, and virtual time divides it. It
is measured with the simulator's engine in virtual time, and with the real engine's worker process,
both with a small random model.

Device time is what the engine reports: of each step, the part of a session by predicted time.
`value` is the largest deviation of the gateways' shares from half, as a part of that half; goal
0.1, as for `users`, the same of two users of one gateway, each with a prompt.

`of_alone` does not depend on predictions: the tokens of each gateway in a second beside the other,
as a part of those that it computes alone, on the real engine. Both would be 0.5 if the gateways
took turns; more is the gain of sharing steps.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Literal

import trio
from worlds.engines import prompt, shard, worker

from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.tasks.engine.interface import (
    Engine,
    EngineEvent,
    LoadShard,
    SessionTerms,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.process import EngineProcess

MEASURES = ("tasks/engine", "netsim", "transport/host")

GOAL: Final = 0.1
SESSIONS: Final = 50
PROMPT: Final = 1024  # tokens of each prompt of the single session, more than it gets in a step
SHORT: Final = (50, 250)  # … and of the others, from session to session
TEXT: Final = 1500  # tokens of each text, after a prompt of one block
VARIED: Final = 10  # prompts of a session differ in length, because an engine repeats old answers
QUEUED: Final = 2  # spans of a session, so that it always has work
Kind = Literal["prompts", "texts", "mix"]
KINDS: Final[tuple[Kind, ...]] = ("prompts", "texts", "mix")


class Sessions:
    """Sessions that always have work, and the seconds that the engine computed for each gateway or
    user."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0
        self._ended = False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tokens: Counter[str] = Counter()

    async def add(self, owner: str, text: bool, terms: SessionTerms) -> None:
        """Open a session. Its time is added to that of `owner`, a gateway or one of its users."""
        self._number += 1
        name = self._number.to_bytes(16)
        first, last = SHORT
        size = PROMPT if owner == "one" else first + (last - first) * self._number // SESSIONS
        spans = _spans(name, text, size, self._number)

        def on_event(event: EngineEvent) -> None:
            if self._ended:  # the worker is stopped
                return
            assert isinstance(event, TokenEvent), event
            self.seconds[owner] += event.seconds
            self.tokens[owner] += 1 if text else event.position
            if event.final:
                self._engine.submit(next(spans))

        await self._engine.open(name, PROMPT + TEXT, on_event, terms)
        for _ in range(QUEUED):
            self._engine.submit(next(spans))

    async def shares(self, warm_s: float, seconds: float) -> dict[str, float]:
        """Return the part of the device time that each gateway or user gets, after a while."""
        await trio.sleep(warm_s)
        self.seconds.clear()
        self.tokens.clear()
        await trio.sleep(seconds)
        self._ended = True
        total = sum(self.seconds.values())
        return {owner: self.seconds[owner] / total for owner in ("many", "one")}


def _spans(name: bytes, text: bool, size: int, seed: int) -> Iterator[Span]:
    """Yield the spans of one session, each of which begins at position 0 again."""
    size, steps = (16 + VARIED, TEXT) if text else (size, 1)
    tokens = prompt(size, seed, "tiny")
    for less in cycle(range(VARIED)):
        part = tokens[: size - less]
        yield Span(name, 0, 0, len(part), tokens=part, want="token", steps=steps)


async def many_and_one(
    engine: Engine, kind: Kind, *, users: bool = False, without: str = ""
) -> Sessions:
    """Open the sessions of two gateways, or of two users of one gateway, or of all but one of
    them."""
    sessions = Sessions(engine)
    for number in range(SESSIONS + 1):
        owner = "one" if number == SESSIONS else "many"
        terms = SessionTerms("gateway", user=owner.encode()) if users else SessionTerms(owner)
        text = owner == "many" and (kind == "texts" or (kind == "mix" and number % 2 == 0))
        if owner != without:
            await sessions.add(owner, text, terms)
    return sessions


async def real(
    kind: Kind, threads: int, seconds: float, without: str = ""
) -> tuple[dict[str, float], Counter[str]]:
    """Measure the real engine. Return the shares and the tokens."""
    async with worker("tiny", threads=threads) as made:
        sessions = await many_and_one(made.engine, kind, without=without)
        return await sessions.shares(seconds / 4, seconds), sessions.tokens


def of_alone(kind: Kind, threads: int, seconds: float, beside: Counter[str]) -> dict[str, float]:
    """Return the tokens of each gateway beside the other, as a part of those that it computes
    alone."""
    found = {}
    for owner, other in (("many", "one"), ("one", "many")):
        _, alone = trio.run(real, kind, threads, seconds, other)
        found[owner] = round(beside[owner] / alone[owner], 2)
    return found


def simulated(kind: Kind, seconds: float, *, users: bool = False) -> dict[str, float]:
    """Measure the simulator's engine on an old laptop, in virtual seconds."""
    world = World(seed=1)
    host = world.host("alice")

    async def main() -> dict[str, float]:
        async with trio.open_nursery() as nursery:
            place = SimulatedHost(host, PROFILES["old-laptop"], nursery)
            engine: EngineProcess = SimulatedEngine(place, 2, 2 << 30, "numbers")
            await nursery.start(engine.run)
            with tempfile.TemporaryDirectory() as folder:
                await engine.load(_copied(place, shard(Path(folder), "tiny")))
            sessions = await many_and_one(engine, kind, users=users)
            found = await sessions.shares(seconds / 4, seconds)
            nursery.cancel_scope.cancel()
        return found

    found: dict[str, float] = world.run(main)
    return found


def _copied(place: SimulatedHost, model: LoadShard) -> LoadShard:
    """Copy the chunk files of a shard to the simulated disk."""
    for tensor in model.tensors:
        for path in map(Path, tensor.chunks):
            place.files.make_folder(path.parent)
            place.files.write(path, path.read_bytes())
    return model


def deviation(shares: dict[str, float]) -> float:
    """Return how far the shares are from half, as a part of it."""
    return round(max(abs(share - 0.5) for share in shares.values()) / 0.5, 3)


def measure(threads: int, quick: bool) -> dict[str, Any]:
    virtual_s, real_s = (8.0, 20.0) if quick else (20.0, 40.0)
    off: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        shares, tokens = trio.run(real, kind, threads, real_s)
        virtual = simulated(kind, virtual_s)
        off[kind] = {"netsim": deviation(virtual), "real": deviation(shares)}
        parts[kind] = of_alone(kind, threads, real_s, tokens)
    users = deviation(simulated("prompts", virtual_s, users=True))
    value = max(each for kind in off.values() for each in kind.values())
    return {
        "name": "engine_fairness",
        "value": value,
        "goal": GOAL,
        "ok": max(value, users) <= GOAL,
        "off": off,
        "users": users,
        "of_alone": parts,
        "sessions": SESSIONS,
        "threads": threads,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds of each")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    result = measure(args.threads, args.quick)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
