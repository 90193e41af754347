"""quota: what goes first, what never goes, and what is refused."""

from collections.abc import Collection
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from shoal.dht.defaults import CHUNK, DISK_MOST, PROOFS_S
from shoal.dht.errors import QuotaFull
from shoal.dht.library import Library
from shoal.dht.quota import Allowance, Quota, Stored, allowance_of, order_of_eviction
from shoal.transport.identity import PeerId

from .models import FakeHost, open_library


def test_what_others_have_goes_first_and_of_that_the_oldest() -> None:
    stored = [
        Stored("last-old", 10, 1.0),
        Stored("kept-new", 10, 9.0, 3),
        Stored("kept-old", 10, 5.0, 2),
        Stored("kept-once", 10, 2.0, 1),
        Stored("last-new", 10, 2.0),
    ]
    assert order_of_eviction(stored, 10) == ["kept-old"]
    assert order_of_eviction(stored, 20) == ["kept-old", "kept-new"]
    assert order_of_eviction(stored, 30) == ["kept-old", "kept-new", "kept-once"]
    assert order_of_eviction(stored, 31)[-1] == "last-old"
    assert order_of_eviction(stored, 50)[-1] == "last-new"
    assert order_of_eviction(stored, 51) == []
    assert order_of_eviction(stored, 0) == []


ITEMS = st.lists(
    st.builds(
        Stored,
        st.text(min_size=1, max_size=4),
        st.integers(1, 50),
        st.floats(0, 1e9),
        st.integers(0, 3),
    ),
    unique_by=lambda item: item.root,
    max_size=8,
)


@given(ITEMS, st.integers(0, 200))
def test_the_last_replica_goes_only_where_nothing_else_is_enough(
    stored: list[Stored], needed: int
) -> None:
    going = order_of_eviction(stored, needed)
    by_root = {item.root: item for item in stored}
    if any(not by_root[root].replicas for root in going):
        assert sum(item.size for item in stored if item.replicas) < needed
    assert not going or sum(by_root[root].size for root in going) >= needed


class World:
    """A library that fetched some blobs and has one of its own; who else holds what."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.others: dict[str, int] = {}  # networks in which a root is held
        self.claimed: dict[str, int] = {}  # who say so besides
        self.believing = False
        self.asked: list[str] = []
        self.decided = 0
        self.used: set[str] = set()
        self.withdrawn: list[str] = []

    async def claims(self, root: str) -> Collection[PeerId]:
        count = self.others.get(root, 0) + self.claimed.get(root, 0)
        return [PeerId(f"p{n}") for n in range(count)]

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int:
        self.asked.append(root)
        return len(claimed) if self.believing else self.others.get(root, 0)

    def over(self) -> None:
        self.decided += 1

    def quota(self, limit: int | None, allowance: Allowance | None = None) -> Quota:
        return Quota(
            FakeHost(inline=True),
            self.library,
            allowance or Allowance(limit),
            claims=self.claims,
            proof=self,
            in_use=lambda: self.used,
            withdraw=self.withdrawn.append,
        )

    async def blob(self, folder: Path, letter: bytes, chunks: int, *, own: bool = False) -> str:
        path = folder / f"file-{letter.decode()}"
        path.write_bytes(b"".join(letter + bytes([n]) * (CHUNK - 1) for n in range(chunks)))
        root = await self.library.add_blob(path)
        if not own:
            await self.library.usage.note_fetched(root)
            self.library.usage.fetched[root] = float(ord(letter))
        return root


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(await open_library(tmp_path / "data"))


@pytest.mark.trio
async def test_room_is_made(world: World, tmp_path: Path) -> None:
    own = await world.blob(tmp_path, b"a", 3, own=True)
    old, new = await world.blob(tmp_path, b"b", 3), await world.blob(tmp_path, b"c", 3)
    world.others = {own: 5, old: 2, new: 2}
    store = world.library.store
    quota = world.quota(store.used_bytes + CHUNK)
    assert await quota.make_room(CHUNK) == []
    leaves = (await world.library.blobs.tree(old)).leaves
    assert await quota.make_room(2 * CHUNK) == [old]
    assert world.withdrawn == [old]
    assert not world.library.knows(old)
    assert store.missing(leaves) == list(leaves)
    assert store.used_bytes == store.used()
    assert store.used_bytes + 2 * CHUNK <= (quota.allowance.limit or 0)
    again = await open_library(tmp_path / "data")
    assert again.everything() == {own, new}
    assert set(again.usage.fetched) == {new}
    assert again.store.used_bytes == store.used_bytes


@pytest.mark.trio
async def test_what_is_own_or_in_use_stays_and_the_refusal_is_coded(
    world: World, tmp_path: Path
) -> None:
    own = await world.blob(tmp_path, b"a", 3, own=True)
    used = await world.blob(tmp_path, b"b", 3)
    free = await world.blob(tmp_path, b"c", 1)
    world.others, world.used = {own: 9, used: 9, free: 9}, {used}
    quota = world.quota(world.library.store.used_bytes)
    with pytest.raises(QuotaFull) as error:
        await quota.make_room(2 * CHUNK)
    assert (error.value.code, bool(error.value.hint)) == ("quota-full", True)
    assert world.library.everything() == {own, used, free}, "nothing went in vain"
    with pytest.raises(QuotaFull):
        world.library.store.require_space(1)
    assert await quota.make_room(CHUNK // 2) == [free]


@pytest.mark.trio
async def test_chunks_that_another_root_has_stay(world: World, tmp_path: Path) -> None:
    first = await world.blob(tmp_path, b"b", 3)
    longer = tmp_path / "longer"
    longer.write_bytes((tmp_path / "file-b").read_bytes() + b"more")
    second = await world.library.add_blob(longer)
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.make_room(10) == [first]
    assert not world.library.store.missing((await world.library.blobs.tree(second)).leaves)


@pytest.mark.trio
async def test_what_is_no_good_goes_and_what_the_owner_added_never(
    world: World, tmp_path: Path
) -> None:
    own = await world.blob(tmp_path, b"a", 1, own=True)
    got = await world.blob(tmp_path, b"b", 2)
    leaves = (await world.library.blobs.tree(got)).leaves
    quota = world.quota(None)
    for root in (own, got, got):
        await quota.drop(root)
    assert world.library.everything() == {own} and world.withdrawn == [got]
    assert world.library.store.missing(leaves) == list(leaves)


@pytest.mark.trio
async def test_without_a_limit_nothing_goes(world: World, tmp_path: Path) -> None:
    root = await world.blob(tmp_path, b"b", 1)
    assert await world.quota(None).make_room(2**60) == []
    assert world.library.knows(root)


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_strangers_who_claim_to_hold_it_do_not_have_the_last_replica_dropped(
    world: World, tmp_path: Path, defended: bool
) -> None:
    """Twin: where they are believed, it goes, as the one that was used least recently."""
    last, held = await world.blob(tmp_path, b"b", 3), await world.blob(tmp_path, b"c", 3)
    world.others, world.claimed, world.believing = {held: 2}, {last: 60}, not defended
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.make_room(2 * CHUNK) == [held if defended else last]
    assert world.decided == 1


@pytest.mark.trio
async def test_proof_is_asked_for_only_where_something_goes_and_of_no_more_than_is_needed(
    world: World, tmp_path: Path
) -> None:
    roots = [await world.blob(tmp_path, letter, 2) for letter in (b"b", b"c", b"d", b"e")]
    world.others = {roots[0]: 1, roots[1]: 2, roots[3]: 2}
    quota = world.quota(world.library.store.used_bytes + CHUNK)
    await quota.make_room(CHUNK)
    assert world.asked == []
    assert await quota.make_room(2 * CHUNK) == [roots[1]]
    assert world.asked == roots[:2], "the third is claimed by nobody, the fourth not needed"


@pytest.mark.trio
async def test_those_who_are_asked_hold_nothing_up_for_long(
    world: World, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many contents there are: what is not proven by then counts as held by nobody."""
    old, new = await world.blob(tmp_path, b"b", 2), await world.blob(tmp_path, b"c", 2)
    world.others = {old: 2, new: 2}

    async def networks(root: str, claimed: Collection[PeerId]) -> int:
        await trio.sleep_forever()

    monkeypatch.setattr(world, "networks", networks)
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.make_room(CHUNK) == [old]
    assert trio.current_time() <= PROOFS_S + 1


GIB = 2**30


@pytest.mark.parametrize(
    ("free", "used", "limit", "kept"),
    [
        (100 * GIB, 0, 50 * GIB, 5 * GIB),
        (60 * GIB, 40 * GIB, 50 * GIB, 5 * GIB),  # what it has taken itself changes nothing
        (4000 * GIB, 0, DISK_MOST, 200 * GIB),
        (3 * GIB // 2, 0, GIB // 2, GIB),
        (GIB, 0, 256 * 2**20, GIB),  # the least there is
    ],
)
def test_an_allowance_that_nobody_set_leaves_most_of_the_disk(
    free: int, used: int, limit: int, kept: int
) -> None:
    assert allowance_of(free, used, 256 * 2**20) == Allowance(limit, kept, firm=False)


@pytest.mark.trio
async def test_what_the_owner_asks_for_may_go_beyond_what_nobody_set(
    world: World, tmp_path: Path
) -> None:
    await world.blob(tmp_path, b"a", 3, own=True)
    quota = world.quota(None, Allowance(4 * CHUNK, firm=False))
    assert await quota.make_room(CHUNK // 2) == []
    with pytest.raises(QuotaFull):
        await quota.make_room(2 * CHUNK)
    assert await quota.make_room(2 * CHUNK, asked=True) == []
    await world.blob(tmp_path, b"b", 3, own=True)  # nor does the store refuse it
    assert await quota.make_room(0) == [], "what is here may be used"
    firm = world.quota(4 * CHUNK)
    with pytest.raises(QuotaFull):
        await firm.make_room(2 * CHUNK, asked=True)


@pytest.mark.trio
@pytest.mark.parametrize("firm", [False, True])
async def test_what_the_owner_asked_for_is_not_evicted_by_what_nobody_set(
    world: World, tmp_path: Path, firm: bool
) -> None:
    """Beyond the limit as it is, the next small file (a stranger's result) would evict it."""
    pulled, other = await world.blob(tmp_path, b"b", 4), await world.blob(tmp_path, b"c", 1)
    world.library.usage.note_asked(pulled)
    world.others = {pulled: 5, other: 1}
    quota = world.quota(None, Allowance(2 * CHUNK, firm=firm))
    assert (await quota.make_room(1, asked=True) != []) is firm
    if not firm:
        with pytest.raises(QuotaFull):
            await quota.make_room(4 * CHUNK)
        await world.library.usage.save()
        again = await open_library(tmp_path / "data")
        assert again.usage.asked == {pulled}
    assert world.library.knows(pulled) is not firm


@pytest.mark.trio
async def test_what_others_fill_of_the_disk_is_not_taken(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = world.quota(None, Allowance(100 * GIB, kept=GIB, firm=False))
    monkeypatch.setattr(world.library.store, "free", lambda: GIB + 3 * CHUNK)
    assert await quota.make_room(3 * CHUNK) == []
    with pytest.raises(QuotaFull):
        await quota.make_room(4 * CHUNK)


@pytest.mark.trio
async def test_models_for_prompts_alone_have_a_small_cache(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a node is asked about: the one that was used longest ago goes."""
    monkeypatch.setattr("shoal.dht.quota.FILES_MOST", 10 * CHUNK)
    quota = world.quota(None)
    await world.blob(tmp_path, b"a", 3)  # fetched for another reason
    kept = []
    for letter in b"bcdefgh":
        root = await world.blob(tmp_path, bytes([letter]), 3)
        await quota.pass_through(root, 3 * CHUNK)
        kept.append(root)
        held = world.library.store.used_bytes - 3 * CHUNK
        assert held <= 10 * CHUNK
    assert world.library.usage.passing == {kept[-2], kept[-1]}
    assert world.withdrawn == kept[:-2]
    assert len(world.library.everything()) == 3
    world.library.usage.note_kept(kept[-2])
    world.used = {kept[-1]}
    for letter in b"ijk":
        await quota.pass_through(await world.blob(tmp_path, bytes([letter]), 3), 3 * CHUNK)
    assert {kept[-2], kept[-1]} <= world.library.everything(), "served, or wanted for itself"
    with pytest.raises(QuotaFull):
        root = await world.blob(tmp_path, b"l", 3)
        await quota.pass_through(root, 11 * CHUNK)
    assert not world.library.knows(root)
    again = await open_library(tmp_path / "data")
    assert again.usage.passing == world.library.usage.passing
