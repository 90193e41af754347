"""quota: what is evicted first, what is never evicted, and what is refused."""

from collections.abc import Collection
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from shoal.dht.content.library import Library
from shoal.dht.content.quota import LibraryLimit, Quota, StoredRoot, allowance_of, order_of_eviction
from shoal.dht.defaults import CHUNK, DISK_MOST, PROOFS_S
from shoal.dht.errors import QuotaFull
from shoal.transport.identity import PeerId

from ..models import FakeHost, open_library


def test_replicated_content_is_evicted_first_then_the_least_recently_used() -> None:
    stored = [
        StoredRoot("last-old", 10, 1.0),
        StoredRoot("kept-new", 10, 9.0, 3),
        StoredRoot("kept-old", 10, 5.0, 2),
        StoredRoot("kept-once", 10, 2.0, 1),
        StoredRoot("last-new", 10, 2.0),
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
        StoredRoot,
        st.text(min_size=1, max_size=4),
        st.integers(1, 50),
        st.floats(0, 1e9),
        st.integers(0, 3),
    ),
    unique_by=lambda item: item.root,
    max_size=8,
)


@given(ITEMS, st.integers(0, 200))
def test_the_last_replica_is_evicted_only_if_nothing_else_is_enough(
    stored: list[StoredRoot], needed: int
) -> None:
    going = order_of_eviction(stored, needed)
    by_root = {item.root: item for item in stored}
    if any(not by_root[root].replicas for root in going):
        assert sum(item.size for item in stored if item.replicas) < needed
    assert not going or sum(by_root[root].size for root in going) >= needed


class World:
    """A library with fetched and own blobs, and other networks that hold some of them."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.others: dict[str, int] = {}  # root -> networks with a replica
        self.claimed: dict[str, int] = {}  # root -> peers with a false claim
        self.believing = False
        self.asked: list[str] = []
        self.decided = 0
        self.used: set[str] = set()
        self.withdrawn: list[str] = []

    async def claims(self, root: str) -> Collection[PeerId]:
        count = self.others.get(root, 0) + self.claimed.get(root, 0)
        return [PeerId(f"p{n}") for n in range(count)]

    def in_use(self) -> Collection[str]:
        return self.used

    def evicted(self, root: str) -> None:
        self.withdrawn.append(root)

    async def networks(self, root: str, claimed: Collection[PeerId]) -> int:
        self.asked.append(root)
        return len(claimed) if self.believing else self.others.get(root, 0)

    def finish(self) -> None:
        self.decided += 1

    def quota(self, limit: int | None, allowance: LibraryLimit | None = None) -> Quota:
        return Quota(
            FakeHost(inline=True),
            self.library,
            allowance or LibraryLimit(limit),
            self,
            self,
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
async def test_eviction_frees_space(world: World, tmp_path: Path) -> None:
    own = await world.blob(tmp_path, b"a", 3, own=True)
    old, new = await world.blob(tmp_path, b"b", 3), await world.blob(tmp_path, b"c", 3)
    world.others = {own: 5, old: 2, new: 2}
    store = world.library.store
    quota = world.quota(store.used_bytes + CHUNK)
    assert await quota.evict_for(CHUNK) == []
    leaves = (await world.library.blobs.tree(old)).leaves
    assert await quota.evict_for(2 * CHUNK) == [old]
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
async def test_own_and_used_content_stays_and_the_refusal_has_a_code(
    world: World, tmp_path: Path
) -> None:
    own = await world.blob(tmp_path, b"a", 3, own=True)
    used = await world.blob(tmp_path, b"b", 3)
    free = await world.blob(tmp_path, b"c", 1)
    world.others, world.used = {own: 9, used: 9, free: 9}, {used}
    quota = world.quota(world.library.store.used_bytes)
    with pytest.raises(QuotaFull) as error:
        await quota.evict_for(2 * CHUNK)
    assert (error.value.code, bool(error.value.hint)) == ("quota-full", True)
    assert world.library.everything() == {own, used, free}, "a failed call evicts nothing"
    with pytest.raises(QuotaFull):
        world.library.store.require_space(1)
    assert await quota.evict_for(CHUNK // 2) == [free]


@pytest.mark.trio
async def test_chunks_shared_with_another_root_stay(world: World, tmp_path: Path) -> None:
    first = await world.blob(tmp_path, b"b", 3)
    longer = tmp_path / "longer"
    longer.write_bytes((tmp_path / "file-b").read_bytes() + b"more")
    second = await world.library.add_blob(longer)
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.evict_for(10) == [first]
    assert not world.library.store.missing((await world.library.blobs.tree(second)).leaves)


@pytest.mark.trio
async def test_invalid_content_is_deleted_and_the_owners_never(
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
async def test_without_a_limit_nothing_is_evicted(world: World, tmp_path: Path) -> None:
    root = await world.blob(tmp_path, b"b", 1)
    assert await world.quota(None).evict_for(2**60) == []
    assert world.library.knows(root)


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_false_claims_do_not_evict_the_last_replica(
    world: World, tmp_path: Path, defended: bool
) -> None:
    """Twin: if claims are believed, it is evicted as the least recently used."""
    last, held = await world.blob(tmp_path, b"b", 3), await world.blob(tmp_path, b"c", 3)
    world.others, world.claimed, world.believing = {held: 2}, {last: 60}, not defended
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.evict_for(2 * CHUNK) == [held if defended else last]
    assert world.decided == 1


@pytest.mark.trio
async def test_proof_is_requested_only_as_far_as_needed(world: World, tmp_path: Path) -> None:
    roots = [await world.blob(tmp_path, letter, 2) for letter in (b"b", b"c", b"d", b"e")]
    world.others = {roots[0]: 1, roots[1]: 2, roots[3]: 2}
    quota = world.quota(world.library.store.used_bytes + CHUNK)
    await quota.evict_for(CHUNK)
    assert world.asked == []
    assert await quota.evict_for(2 * CHUNK) == [roots[1]]
    assert world.asked == roots[:2], "no peer claims the third, the fourth is not needed"


@pytest.mark.trio
async def test_proofs_take_a_limited_time(
    world: World, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time does not grow with the contents: unproven replicas then count as none."""
    old, new = await world.blob(tmp_path, b"b", 2), await world.blob(tmp_path, b"c", 2)
    world.others = {old: 2, new: 2}

    async def networks(root: str, claimed: Collection[PeerId]) -> int:
        await trio.sleep_forever()

    monkeypatch.setattr(world, "networks", networks)
    quota = world.quota(world.library.store.used_bytes)
    assert await quota.evict_for(CHUNK) == [old]
    assert trio.current_time() <= PROOFS_S + 1


GIB = 2**30


@pytest.mark.parametrize(
    ("free", "used", "limit", "kept"),
    [
        (100 * GIB, 0, 50 * GIB, 5 * GIB),
        (60 * GIB, 40 * GIB, 50 * GIB, 5 * GIB),  # the library's own use changes nothing
        (4000 * GIB, 0, DISK_MOST, 200 * GIB),
        (3 * GIB // 2, 0, GIB // 2, GIB),
        (GIB, 0, 256 * 2**20, GIB),  # the minimum
    ],
)
def test_the_default_allowance_leaves_most_of_the_disk(
    free: int, used: int, limit: int, kept: int
) -> None:
    assert allowance_of(free, used, 256 * 2**20) == LibraryLimit(limit, kept, firm=False)


@pytest.mark.trio
async def test_a_shortage_is_what_would_be_refused(world: World, tmp_path: Path) -> None:
    await world.blob(tmp_path, b"a", 3, own=True)
    gone = await world.blob(tmp_path, b"c", 1)
    quota = world.quota(None, LibraryLimit(4 * CHUNK, firm=False))
    assert await quota.shortage(CHUNK // 2) is None, "it can be evicted"
    short = await quota.shortage(2 * CHUNK)
    assert short is not None and short.hint is not None and "shoal config set disk" in short.hint
    with pytest.raises(QuotaFull, match=short.message):
        await quota.evict_for(2 * CHUNK)
    assert world.library.knows(gone), "nothing is evicted by asking"
    assert await world.quota(None).shortage(2**40) is None


@pytest.mark.trio
async def test_a_request_of_the_owner_may_exceed_the_default_limit(
    world: World, tmp_path: Path
) -> None:
    await world.blob(tmp_path, b"a", 3, own=True)
    quota = world.quota(None, LibraryLimit(4 * CHUNK, firm=False))
    assert await quota.evict_for(CHUNK // 2) == []
    with pytest.raises(QuotaFull):
        await quota.evict_for(2 * CHUNK)
    assert await quota.evict_for(2 * CHUNK, asked=True) == []
    await world.blob(tmp_path, b"b", 3, own=True)  # the chunk store does not refuse it either
    assert await quota.evict_for(0) == [], "stored content may be used"
    firm = world.quota(4 * CHUNK)
    with pytest.raises(QuotaFull):
        await firm.evict_for(2 * CHUNK, asked=True)


@pytest.mark.trio
@pytest.mark.parametrize("firm", [False, True])
async def test_content_that_the_owner_requested_is_not_evicted_by_the_default_limit(
    world: World, tmp_path: Path, firm: bool
) -> None:
    """It may exceed the limit, so the next small file (a stranger's result) would evict it."""
    pulled, other = await world.blob(tmp_path, b"b", 4), await world.blob(tmp_path, b"c", 1)
    world.library.usage.note_asked(pulled)
    world.others = {pulled: 5, other: 1}
    quota = world.quota(None, LibraryLimit(2 * CHUNK, firm=firm))
    assert (await quota.evict_for(1, asked=True) != []) is firm
    if not firm:
        with pytest.raises(QuotaFull):
            await quota.evict_for(4 * CHUNK)
        await world.library.usage.save()
        again = await open_library(tmp_path / "data")
        assert again.usage.asked == {pulled}
    assert world.library.knows(pulled) is not firm


@pytest.mark.trio
async def test_space_that_other_programs_fill_is_not_used(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = world.quota(None, LibraryLimit(100 * GIB, kept=GIB, firm=False))
    monkeypatch.setattr(world.library.store, "free", lambda: GIB + 3 * CHUNK)
    assert await quota.evict_for(3 * CHUNK) == []
    with pytest.raises(QuotaFull):
        await quota.evict_for(4 * CHUNK)


@pytest.mark.trio
async def test_models_for_prompts_only_have_a_small_cache(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not grow with the models requested: the least recently used one is evicted."""
    monkeypatch.setattr("shoal.dht.content.quota.FILES_MOST", 10 * CHUNK)
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
    assert {kept[-2], kept[-1]} <= world.library.everything(), "served, or wanted as a whole"
    with pytest.raises(QuotaFull):
        root = await world.blob(tmp_path, b"l", 3)
        await quota.pass_through(root, 11 * CHUNK)
    assert not world.library.knows(root)
    again = await open_library(tmp_path / "data")
    assert again.usage.passing == world.library.usage.passing
