"""Blocks under random use: nothing is lost, and no session sees what another one wrote."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.kv.blocks import BLOCK, BlockName, BlockPool, BlockTable, blocks_for

PROMPTS = [  # they share prefixes of several lengths
    [number // BLOCK * 7 for number in range(70)],
    [number // BLOCK * 7 for number in range(40)] + [9] * 30,
    [number // BLOCK * 7 for number in range(32)],
    [5] * 50,
]


def content(owner: str, tokens: Sequence[int], at: int) -> bytes:
    """Return what the position `at` holds: it depends on the gateway and all tokens before."""
    return blake2b(repr((owner, tokens[: at + 1])).encode(), digest_size=8).digest()


def names(owner: str, tokens: Sequence[int]) -> list[BlockName]:
    """Return names that two gateways share, as if one had found the other's."""
    return [
        (owner, blake2b(repr(tokens[:end]).encode(), digest_size=16).digest())
        for end in range(BLOCK, len(tokens) + 1, BLOCK)
    ]


@dataclass
class Session:
    owner: str
    table: BlockTable
    plan: list[int]  # what the names of `open` stand for
    tokens: list[int] = field(default_factory=list)
    author: str = ""  # the owner of the content, which a fork takes over


class World:
    """A pool, its sessions, and what the memory of each block would hold."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.sessions: list[Session] = []
        self.memory: dict[int, bytes] = {}  # by slot
        self.refused = 0
        self.found = 0

    def open(self, owner: str, plan: Sequence[int], tokens: int) -> None:
        before = self.pool.promised
        try:
            table = BlockTable(self.pool, tokens, names(owner, plan))
        except EngineError as error:
            assert error.code == "no-memory"
            assert before + blocks_for(tokens) > self.pool.total
            self.refused += 1
            return
        assert self.pool.promised == before + blocks_for(tokens)
        self.found += table.length
        self.sessions.append(Session(owner, table, [*plan], [*plan[: table.length]], owner))

    def write(self, session: Session, tokens: Sequence[int]) -> None:
        """Append tokens, as one part of a step."""
        table, start = session.table, len(session.tokens)
        end = start + len(tokens)
        for source, target in table.prepare(start, end):
            for place in range(BLOCK):
                held = self.memory.get(source * BLOCK + place, b"")
                self.memory[target * BLOCK + place] = held
        session.tokens += tokens
        for at in range(start, end):
            assert not self.pool.is_shared(table.blocks[at // BLOCK])
            self.memory[table.slot(at)] = content(session.author, session.tokens, at)
        table.fill(end)

    def close(self, session: Session, *, named: bool) -> None:
        if named and session.author == session.owner:
            session.table.name_all(names(session.owner, session.tokens))
        session.table.free()
        session.table.free()
        self.sessions.remove(session)

    def check(self) -> None:
        pool = self.pool
        assert pool.free + pool.cached + pool.used == pool.total
        assert pool.free >= 0 and pool.cached >= 0
        tables = Counter(block for session in self.sessions for block in session.table.blocks)
        assert pool.used == len(tables)
        for block, count in tables.items():
            assert pool.is_shared(block) == (count > 1)
        promised = sum(blocks_for(session.table.tokens) for session in self.sessions)
        assert pool.promised == promised <= pool.total
        for session in self.sessions:
            self.check_session(session)

    def check_session(self, session: Session) -> None:
        table, length = session.table, session.table.length
        assert length == len(session.tokens)
        assert blocks_for(length) <= len(table.blocks) <= blocks_for(table.tokens)
        runs = [block for first, count in table.runs for block in range(first, first + count)]
        assert runs == [*table.blocks] and len({*runs}) == len(runs)
        slots = [table.slot(at) for at in range(length)]
        spans = [slot for first, end in table.spans(0, length) for slot in range(first, end)]
        assert spans == slots
        for at, slot in enumerate(slots):
            assert self.memory[slot] == content(session.author, session.tokens, at), at


def act(world: World, random: Random) -> None:
    """Do one random thing that the engine's core may do."""
    deed = random.choice(["open", "open", "prompt", "prompt", "prompt", "text", "text", "back",
                          "truncate", "discard", "fork", "import", "close", "close"])  # fmt: skip
    if deed == "open" or not world.sessions:
        owner, plan = random.choice("ab"), random.choice(PROMPTS)
        world.open(owner, plan, random.choice([random.randint(1, 80), 80]))
        return
    session = random.choice(world.sessions)
    table, length = session.table, len(session.tokens)
    room = table.tokens - length
    if deed == "prompt":  # goes on with what the names stand for, if it has followed them
        fits = session.plan[:length] == session.tokens and session.author == session.owner
        rest = session.plan[length:] if fits else [random.randint(0, 3) for _ in range(20)]
        world.write(session, rest[: min(room, random.randint(1, 40))])
    elif deed == "text" and room:
        ended = length >= len(session.plan) or session.plan[:length] != session.tokens
        token = random.randint(0, 3) if ended else session.plan[length]
        world.write(session, [token])
    elif deed == "back" and length and session.plan[:length] != session.tokens:
        del session.tokens[random.randrange(length) :]
        world.write(session, [random.randint(0, 3)])
    elif deed in ("truncate", "discard") and length:
        keep = random.randrange(length)
        (table.truncate if deed == "truncate" else table.discard)(keep)
        del session.tokens[keep:]
        if random.random() < 0.7 and session.plan[:1]:  # another text than the names stand for
            world.write(session, [random.randint(20, 30)])
    elif deed == "fork":
        source = random.choice(world.sessions)
        if source is not session and len(source.tokens) <= table.tokens:
            table.share(source.table)
            session.tokens, session.author = [*source.tokens], source.author
            session.plan = []
    elif deed == "import":  # prepares the whole table, and may then be refused
        table.prepare(0, random.randint(0, table.tokens))
        table.truncate(0)
        session.tokens.clear()
    elif deed == "close":
        world.close(session, named=random.random() < 0.7)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30), st.randoms(use_true_random=False), st.integers(1, 120))
def test_random_sessions_keep_their_content_and_every_block_is_counted(
    blocks: int, random: Random, deeds: int
) -> None:
    world = World(blocks)
    for _ in range(deeds):
        act(world, random)
        world.check()
    for session in [*world.sessions]:
        world.close(session, named=True)
        world.check()
    assert world.pool.promised == world.pool.used == 0


def test_the_random_sessions_meet_what_matters() -> None:
    """Guards the test above: prefixes are found, memory is refused, blocks are evicted."""
    found = refused = cached = 0
    for seed in range(60):
        world, random = World(8), Random(seed)
        for _ in range(100):
            act(world, random)
            world.check()
            cached += world.pool.cached > 0 and world.pool.free == 0
        found += world.found > 0
        refused += world.refused > 0
    assert found > 30 and refused > 30 and cached > 20


# Promises.


def test_promises_are_kept_while_everything_is_cached() -> None:
    world = World(10)
    for number in range(5):  # fills the cache with other prefixes
        world.open("a", [number] * 32, 32)
        world.write(world.sessions[0], [number] * 32)
        world.close(world.sessions[0], named=False)
    assert (world.pool.cached, world.pool.free) == (10, 0)
    for number in range(5):
        world.open("b", [number + 50] * 30, 32)
    assert world.pool.promised == 10
    world.open("b", [], 1)
    assert world.refused == 1
    for session in world.sessions:
        world.write(session, [*session.plan, 1, 2])
        world.check()
    assert (world.pool.used, world.pool.cached) == (10, 0)


def test_a_promise_holds_for_sessions_that_share_and_then_part() -> None:
    """Each has promised the shared blocks too, so each gets a copy in a full pool."""
    world = World(6)
    world.open("a", [], 32)
    world.write(world.sessions[0], [1] * 20)
    for _ in range(2):
        world.open("a", [], 32)
        world.sessions[-1].table.share(world.sessions[0].table)
        world.sessions[-1].tokens = [1] * 20
    world.check()
    assert world.pool.used == 2
    for number, session in enumerate(world.sessions):
        world.write(session, [number] * 12)
        world.check()
    assert world.pool.used == 4  # the first block is still shared
    for number, session in enumerate(world.sessions):
        session.tokens.clear()
        world.write(session, [number + 5] * 32)
        world.check()
    assert world.pool.used == 6


@pytest.mark.parametrize("tokens", [17, 32])
def test_capacity_is_in_whole_blocks(tokens: int) -> None:
    pool = BlockPool(4)
    tables = [BlockTable(pool, tokens), BlockTable(pool, tokens)]
    with pytest.raises(EngineError, match="16 positions of KV are asked for, 0 of 64 are free"):
        BlockTable(pool, 1)
    tables[0].free()
    tables[0].free()
    assert pool.promised == 2
    BlockTable(pool, 32)


# Names.


def _cache(world: World, owner: str, tokens: Sequence[int]) -> None:
    world.open(owner, tokens, len(tokens))
    session = world.sessions[-1]
    world.write(session, tokens[len(session.tokens) :])
    world.close(session, named=False)


def test_another_owner_never_finds_a_name() -> None:
    world = World(8)
    _cache(world, "a", PROMPTS[2])
    assert BlockTable(world.pool, 80, names("b", PROMPTS[2])).length == 0
    assert BlockTable(world.pool, 32, names("a", PROMPTS[2])).length == 32


def test_wrong_and_repeated_names_find_no_more_than_a_prefix() -> None:
    world = World(8)
    _cache(world, "a", PROMPTS[2])
    first, second = names("a", PROMPTS[2])
    unknown = "a", bytes(16)
    for given_names, found in (
        ([], 0),
        ([unknown, second], 0),
        ([second], 16),  # a name stands for its whole prefix, so this gateway contradicts itself
        ([first, unknown, second], 16),
        ([first, second, unknown], 32),
    ):
        table = BlockTable(world.pool, 80, given_names)
        assert table.length == found
        table.free()
        assert world.pool.used == 0
        assert world.pool.free + world.pool.cached == world.pool.total


def test_one_name_given_twice_harms_only_its_own_session() -> None:
    world = World(8)
    name = "a", bytes(16)
    table = BlockTable(world.pool, 64, [name] * 4)
    table.prepare(0, 64)
    table.fill(64)
    table.free()
    assert (world.pool.cached, world.pool.free) == (1, 7)
    twice = BlockTable(world.pool, 64, [name] * 4)
    assert twice.prepare(twice.length, 64) == []
    twice.free()
    assert world.pool.free + world.pool.cached == 8
    assert world.pool.promised == world.pool.used == 0


def test_only_whole_blocks_within_the_reservation_are_found() -> None:
    world = World(8)
    _cache(world, "a", PROMPTS[0])
    assert world.pool.cached == 4  # the last 6 of 70 positions are no whole block
    for tokens, found in ((15, 0), (16, 16), (31, 16), (80, 64)):
        table = BlockTable(world.pool, tokens, names("a", PROMPTS[0]))
        assert table.length == found
        table.free()


def test_a_session_that_goes_on_differently_is_not_found_under_its_names() -> None:
    for back in ("prepare", "truncate", "discard"):
        world = World(8)
        world.open("a", PROMPTS[0], 70)
        (session,) = world.sessions
        world.write(session, PROMPTS[0][:48])
        if back != "prepare":
            getattr(session.table, back)(20)
        del session.tokens[20:]
        world.write(session, [77] * 44)
        world.check()
        world.close(session, named=False)
        table = BlockTable(world.pool, 70, names("a", PROMPTS[0]))
        assert table.length == 16, back


def test_the_whole_session_can_be_named_at_its_end() -> None:
    world = World(8)
    world.open("a", PROMPTS[2], 80)
    (session,) = world.sessions
    world.write(session, PROMPTS[2])
    world.write(session, [1] * 20)
    world.close(session, named=True)
    world.open("a", [*PROMPTS[2], *[1] * 20, 4, 5], 80)
    world.check()
    assert world.sessions[0].table.length == 48
    world.close(world.sessions[0], named=False)
    world.open("a", [*PROMPTS[2], 2, 3], 80)
    assert world.sessions[0].table.length == 32


def test_discarded_content_is_not_found() -> None:
    world = World(8)
    world.open("a", PROMPTS[0], 80)
    world.write(world.sessions[0], PROMPTS[0][:48])
    assert len(_found(world.pool, names("a", PROMPTS[0]))) == 3
    world.sessions[0].table.discard(20)
    assert len(_found(world.pool, names("a", PROMPTS[0]))) == 1


def test_a_truncated_shared_block_is_copied_before_it_is_written() -> None:
    world = World(8)
    _cache(world, "a", PROMPTS[2])
    for _ in range(2):
        world.open("a", PROMPTS[2], 48)
    first, second = world.sessions
    assert first.table.blocks == second.table.blocks
    del first.tokens[24:]
    world.write(first, PROMPTS[2][24:26])
    world.check()
    assert first.table.blocks[0] == second.table.blocks[0]
    assert first.table.blocks[1] != second.table.blocks[1]


# Eviction and placement.


def test_the_block_that_was_released_first_is_evicted_first() -> None:
    world = World(6)
    for number in (1, 2, 3):
        _cache(world, "a", [number] * 32)
    world.open("a", [1] * 32, 32)  # used again, so released last
    world.close(world.sessions[0], named=False)
    world.open("b", [], 32)
    world.write(world.sessions[0], [0] * 32)
    found = [len(_found(world.pool, names("a", [number] * 32))) for number in (1, 2, 3)]
    assert found == [2, 0, 2]


def _found(pool: BlockPool, wanted: Sequence[BlockName]) -> list[int]:
    blocks = pool.find(wanted)
    for block in blocks:
        pool.release(block)
    return blocks


def test_a_long_prefix_loses_its_end_before_its_beginning() -> None:
    """Otherwise the rest would be cached, but never found."""
    world = World(6)
    _cache(world, "a", PROMPTS[0][:64])
    world.open("b", [], 64)
    world.write(world.sessions[0], [0] * 64)  # evicts two of the four
    assert len(_found(world.pool, names("a", PROMPTS[0]))) == 2


def test_blocks_in_use_are_never_evicted() -> None:
    world = World(4)
    _cache(world, "a", [1] * 32)
    world.open("a", [1] * 32, 32)
    world.open("b", [], 32)
    world.write(world.sessions[1], [0] * 32)
    world.check()
    assert world.pool.cached == world.pool.free == 0


def test_sessions_that_grow_in_turns_stay_in_one_run() -> None:
    world = World(256)
    for _ in range(8):
        world.open("a", [], 16 * 16)
        world.write(world.sessions[-1], [1] * 16)
    for _ in range(15):
        for session in world.sessions:
            world.write(session, [2] * 16)
    world.check()
    assert max(len(session.table.runs) for session in world.sessions) <= 2
    assert sum(len(session.table.runs) for session in world.sessions) <= 10


def test_a_lone_session_has_one_run_in_a_fresh_pool() -> None:
    world = World(64)
    world.open("a", [], 1024)
    for _ in range(64):
        world.write(world.sessions[0], [1] * 16)
    assert world.sessions[0].table.runs == [[0, 64]]
