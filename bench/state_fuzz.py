"""Malicious updates: the published crashers of Yjs decoders, and a million mutated updates.

A child process is a replica of feeds whose author lies. Every update is signed, opened and admitted
like one that came over a link. The feeds differ in size, from a few facts to 4,096 keys and a
megabyte of history. Updates are the ones that an honest author would write next, pycrdt's updates
with other kinds of content, snapshots, and the crashers. Nearly all are mutated: bits are flipped,
bytes inserted, removed or copied, numbers enlarged. An accepted update has to be in pycrdt's
document exactly as it was read, with nothing pending. At the end come the heaviest updates that the
grammar admits: snapshots of all possible keys, updates that change as many keys as one can until
the epoch is full, and snapshots full of values that nest or announce more items than they have. The
views follow each entry in the same steps as in a node.

`value` is the longest time for which one entry holds the event loop, elapsed, in reference ms
(`yardstick.py`, elapsed too); goal 50. Beside it are the same in ms of this machine (`wall_ms`),
the longest in CPU time, and `waited_ms`: the part of the longest in which the kernel gave the core
to other processes, so that a miss on a busy machine can be recognised. `ok` also requires a growth
of at most 64 MiB and no exit of the process. The twin beside it passes the crashers to pycrdt
unread. `--quick` mutates 60,000.
"""

import argparse
import gc
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from yardstick import Yardstick

from shoal.state.feeds.entry import NO_PARENT, FeedName, client_of, open_entry, seal_entry
from shoal.state.feeds.feed import Document, EntryOutcome, EntryVerdict, Feed, snapshot
from shoal.state.feeds.kinds import KINDS
from shoal.state.views.views import Views
from shoal.transport.identity import Identity

MEASURES = ("state", "transport/identity.py")

GOAL_MS: Final = 50.0  # of the reference machine
GROWTH_MIB: Final = 64.0
UPDATES: Final = 1_000_000
QUICK: Final = 60_000
CRASHERS: Final = tuple(map(bytes.fromhex, ("8088debe01", "80c2d72f")))
WIDE: Final = 500  # one update of this many is as large as its kind allows
BOMBS: Final = (
    b"\xdc\x0d\xac" * 1000 + b"\xc0" * 500,
    b"\x91" * 1000 + b"\xc0",
    b"\xde\x0d\xac\xa0" * 800,
    b"\xdd\xff\xff\xff\xff" * 700,
    b"\xdc\x13\x88" + b"\x80" * 5000,
)
"""Nested headers of long lists and maps, whole and truncated; thousands of empty maps."""
BOMBS_AMONG: Final = 0.02
LIAR: Final = Identity.from_seed(b"l" * 32)


class Victim:
    """One feed of the liar's, as a replica has it, and the next updates for it."""

    def __init__(self, rng: random.Random, kind: str, keys: int) -> None:
        self.rng = rng
        self.kind = KINDS[kind]
        self.feed = Feed(FeedName(LIAR.peer, kind, 0))
        self.views = Views()
        self.keys = [f"{number}" for number in range(keys)]
        self.epoch = 0
        self.hold_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)
        assert self.say(*self.renewal()) is EntryOutcome.NEWS

    @property
    def document(self) -> Document:
        assert self.feed.document is not None
        return self.feed.document

    def renewal(self) -> tuple[bool, bytes]:
        """Return a snapshot of some facts, for the next epoch."""
        client = client_of(self.feed.name, self.epoch + 1)
        facts = dict.fromkeys(self.rng.sample(self.keys, len(self.keys) * 9 // 10), b"v")
        return True, snapshot(self.kind, client, facts)

    def value(self) -> bytes:
        """Return a few bytes; rarely a value that is expensive for a decoder of facts."""
        if self.rng.random() < BOMBS_AMONG:
            return self.rng.choice(BOMBS)
        return self.rng.randbytes(self.rng.choice((0, 1, 3, 9)))

    def next_update(self) -> tuple[bool, bytes]:
        """Return what an honest author might write next: a few changes, or as many as one update
        may hold.
        """
        wide = self.rng.randrange(WIDE) == 0
        most = min(len(self.keys), self.kind.update_bytes // 32 if wide else 6)
        changes: dict[str, bytes | None] = {}
        for key in self.rng.sample(self.keys, self.rng.randrange(1, most + 1)):
            here = self.document.get(key) is not None
            gone = here and self.rng.random() < 0.3
            changes[key] = None if gone else self.value()
        return False, self.document.write(changes)

    def say(self, fresh: bool, update: bytes) -> EntryOutcome:
        """Process the update as an entry by the liar, from its bytes on; note how long that
        took.
        """
        head = self.feed.head
        parent = NO_PARENT if fresh or head is None else head.hash
        sealed = seal_entry(
            LIAR,
            self.kind.name,
            0,
            epoch=self.epoch + fresh,
            seq=0 if fresh or head is None else head.seq + 1,
            parent=parent,
            made=1,
            update=update,
        ).sealed
        self.hold_ms = (0.0, 0.0, 0.0)
        with self.held():
            entry = open_entry(sealed)
            verdict = self.feed.admit(entry)
        if verdict.outcome is EntryOutcome.NEWS:
            self.show(verdict)
            self.epoch += fresh
            self.check(verdict.changed)
        return EntryOutcome.OLD if verdict.code == "epoch-full" else verdict.outcome

    def show(self, verdict: EntryVerdict) -> None:
        """Let the views follow, step by step; note the longest step."""
        steps, left = iter(self.views.steps(self.feed.name, verdict)), True
        while left:
            with self.held():
                left = next(steps, self) is not self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note the duration of a step, if it is the longest of this entry."""
        waited, cpu, wall = waited_ms(), time.process_time(), time.perf_counter()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.hold_ms = max(self.hold_ms, (wall * 1e3, cpu * 1e3, waited_ms() - waited))

    def check(self, changed: Any) -> None:
        """Check that pycrdt holds what was read, and nothing is pending."""
        for key, value in changed.items():
            assert self.document.get(key) == value, "pycrdt read something else"
        ledger = self.document._ledger
        held = self.document.doc.get_state()
        assert not ledger.clock or held.endswith(_number(ledger.clock)), "something is pending"
        assert len(held) <= 11, "another client got in"


def _number(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


@lru_cache(8)  # and pycrdt keeps a KiB of each nested document forever
def others(client: int) -> list[bytes]:
    """Return updates of pycrdt with foreign content: texts, lists, nested ones, other values."""
    from pycrdt import Array, Doc, Map, Text

    def text(doc: Any) -> None:
        doc.get("facts", type=Text).insert(0, "long text")

    def items(doc: Any) -> None:
        doc.get("facts", type=Array).extend([1, b"2", "3", None, [4.5], {"six": True}])

    def nested(doc: Any) -> None:
        facts = doc.get("facts", type=Map)
        facts["m"], facts["a"] = Map({"x": b"1", "y": Text("z")}), Array([1, Map({})])

    def inner(doc: Any) -> None:
        doc.get("facts", type=Map)["d"] = Doc()

    written = []
    for write in (text, items, nested, inner):
        doc: Any = Doc(client_id=client)
        write(doc)
        written.append(doc.get_update())
    return written


NUMBERS: Final = (
    b"\x80\x88\xde\xbe\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x80\x04",
    b"\x00",
)


def flip(rng: random.Random, data: bytearray, at: int) -> None:
    data[at] ^= 1 << rng.randrange(8)


def replace_byte(rng: random.Random, data: bytearray, at: int) -> None:
    data[at] = rng.randrange(256)


def put_in(rng: random.Random, data: bytearray, at: int) -> None:
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def leave_out(rng: random.Random, data: bytearray, at: int) -> None:
    del data[at : at + rng.randrange(1, 9)]


def copy_about(rng: random.Random, data: bytearray, at: int) -> None:
    begin = rng.randrange(len(data))
    data[at:at] = data[begin : begin + rng.randrange(1, 40)]


def blow_up(rng: random.Random, data: bytearray, at: int) -> None:
    data[at : at + 1] = rng.choice(NUMBERS)


def cut(rng: random.Random, data: bytearray, at: int) -> None:
    del data[at:]


def nudge(rng: random.Random, data: bytearray, at: int) -> None:
    data[at] = (data[at] + rng.choice((1, 255))) % 256


MUTATIONS: Final[tuple[Callable[[random.Random, bytearray, int], None], ...]] = (
    flip,
    replace_byte,
    put_in,
    leave_out,
    copy_about,
    blow_up,
    cut,
    nudge,
)


def mutated(rng: random.Random, update: bytes) -> bytes:
    data = bytearray(update)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3, 8))):
        if data:
            # mostly where the structure is, in the first bytes of large ones
            at = rng.randrange(min(len(data), rng.choice((16, 64, 2**20))))
            rng.choice(MUTATIONS)(rng, data, at)
    return bytes(data[: 64 * 2**10])


def waited_ms() -> float:
    """Return how long this process has waited for a core; 0 if the kernel does not tell."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e6
    except OSError:
        return 0.0


def rss_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def attack(count: int, seed: int) -> dict[str, Any]:
    """Apply every update, one after another, in the child."""
    rng = random.Random(seed)
    victims = [Victim(rng, *of) for of in (("member", 20), ("models", 300), ("jobs", 4096))]
    gc.collect()
    began, outcomes = rss_mib(), Counter[str]()
    most_mib, holds, most_cpu = began, [(0.0, 0.0, 0.0)], 0.0
    stick = Yardstick(time.perf_counter)
    for turn in range(count):
        victim = rng.choices(victims, (6, 3, 1))[0]
        fresh, update = chosen(rng, victim, turn)
        outcome = victim.say(fresh, mutated(rng, update))
        holds[0], most_cpu = max(holds[0], victim.hold_ms), max(most_cpu, victim.hold_ms[1])
        outcomes[outcome.value] += 1
        if outcome is EntryOutcome.OLD:  # its epoch is full
            victim.say(*victim.renewal())
        if turn % 500 == 0:
            most_mib = max(most_mib, rss_mib())
            stick.sample()
    heavy = [*heaviest(rng, victims[2]), *bombed(victims[2])]
    stick.sample(20)
    wall, _, waited = max(holds + heavy)
    return {
        "held_reference_ms": stick.reference_ms(wall),
        "reference_ms": stick.ms,
        "wall_ms": wall,
        "waited_ms": waited,
        "cpu_ms": max(most_cpu, *(cpu for _, cpu, _ in heavy)),
        "growth_mib": max(most_mib, rss_mib()) - began,
        "heaviest_wall_ms": max(heavy)[0],
        "heaviest_cpu_ms": max(cpu for _, cpu, _ in heavy),
        "outcomes": dict(outcomes),
    }


def heaviest(rng: random.Random, victim: Victim) -> Iterator[tuple[float, float, float]]:
    """Yield how long each of the heaviest entries holds the loop: three epochs full of them."""
    keys = victim.keys
    full = dict.fromkeys(keys, b"v" * 40)
    for _ in range(3):  # each releases a document with a full history
        client = client_of(victim.feed.name, victim.epoch + 1)
        outcome = victim.say(True, snapshot(victim.kind, client, full))
        assert outcome is EntryOutcome.NEWS
        while outcome is EntryOutcome.NEWS:
            yield victim.hold_ms
            changes = {key: rng.randbytes(1) for key in rng.sample(keys, 3000)}
            outcome = victim.say(False, victim.document.write(changes))
        assert outcome is EntryOutcome.OLD


def bombed(victim: Victim) -> Iterator[tuple[float, float, float]]:
    """Yield how long snapshots with as many bombs as fit hold the loop."""
    for bomb in BOMBS:
        facts = dict.fromkeys(victim.keys[: victim.kind.live_bytes // (len(bomb) + 32)], bomb)
        client = client_of(victim.feed.name, victim.epoch + 1)
        assert victim.say(True, snapshot(victim.kind, client, facts)) is EntryOutcome.NEWS
        yield victim.hold_ms


def chosen(rng: random.Random, victim: Victim, turn: int) -> tuple[bool, bytes]:
    """Return the update that is mutated next, and whether it claims to begin an epoch."""
    lot = rng.random()
    if turn < 2 * len(CRASHERS):
        return turn < len(CRASHERS), CRASHERS[turn % len(CRASHERS)]
    if lot < 0.05:
        return lot < 0.01, rng.choice(CRASHERS)
    if lot < 0.1:
        return lot < 0.06, rng.choice(others(client_of(victim.feed.name, victim.epoch)))
    if lot < (0.11 if len(victim.keys) < 1000 else 0.1005):
        return victim.renewal()
    return victim.next_update()


def unread(crasher: bytes) -> dict[str, Any]:
    """Run the twin: the fate of a process that gives a crasher to pycrdt."""
    code = (
        "import resource, time, pycrdt; doc = pycrdt.Doc();"
        "began = time.process_time()\n"
        f"try: doc.apply_update({crasher!r})\n"
        "except ValueError: pass\n"
        "print(time.process_time() - began)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    told = done.stdout.split()
    return {
        "update": crasher.hex(),
        "exit": done.returncode,
        "cpu_ms": float(told[0]) * 1e3 if told else None,
        "peak_mib": float(told[1]) if told else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} updates")
    parser.add_argument("--updates", type=int, default=None, help="another number of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    count = args.updates or (QUICK if args.quick else UPDATES)
    if args.child:
        print(json.dumps(attack(count, args.seed)))
        return 0
    command = [sys.executable, __file__, "--child", "--updates", str(count)]
    done = subprocess.run(
        [*command, "--seed", str(args.seed)], stdout=subprocess.PIPE, check=False, env=os.environ
    )
    exits = int(done.returncode != 0)
    found: dict[str, Any] = json.loads(done.stdout) if not exits else {"held_reference_ms": None}
    ok = not exits and found["held_reference_ms"] <= GOAL_MS and found["growth_mib"] <= GROWTH_MIB
    result = {
        "name": "state_fuzz",
        "value": found["held_reference_ms"],
        "goal": GOAL_MS,
        "ok": ok,
        "updates": count,
        "exits": exits,
        **found,
        "unread": [unread(crasher) for crasher in CRASHERS],
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
