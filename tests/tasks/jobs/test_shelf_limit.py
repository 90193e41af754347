"""Blobs of other nodes' jobs have a bounded part of the disk limit, which a real quota keeps."""

from pathlib import Path

import pytest
import trio

from shoal.dht.errors import ModelError, NotEnoughDisk, QuotaFull
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import JobsDiskFull
from shoal.tasks.jobs.spec import BlobPart
from shoal.transport.identity import Identity
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER
from tests.tasks.jobs.quotas import MIB, ShelfNode, shelf_node

pytestmark = pytest.mark.trio
LIMIT = 128 * MIB  # of which 16 MiB are for jobs of other nodes, and 12 MiB of these for replicas
AUTHORS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(20, 40)]


async def kept_by(made: ShelfNode, author: str, size: int = 2 * MIB) -> str:
    root = await made.made(size)
    await made.shelf.keep(root, size, author)
    return root


async def fill(made: ShelfNode, size: int = 2 * MIB) -> list[str]:
    """Have blobs kept for many authors, until one is refused. Return those that are kept."""
    kept = []
    with pytest.raises(NotEnoughDisk):
        for author in AUTHORS:
            kept.append(await kept_by(made, author, size))
    return kept


@pytest.mark.parametrize("firm", [False, True])
async def test_strangers_do_not_exceed_a_limit_that_the_owner_fills(
    tmp_path: Path, autojump_clock: object, firm: bool
) -> None:
    made = await shelf_node(tmp_path, 32 * MIB, firm=firm)  # of which 4 MiB are for such blobs
    own = await made.made(int(31.5 * MIB) if firm else 34 * MIB, here=True)
    before = made.used
    for author in AUTHORS[:10]:
        with pytest.raises(QuotaFull):
            await kept_by(made, author, MIB)
    rows = await made.made(MIB)
    with pytest.raises(QuotaFull):
        await made.shelf.read(BlobPart(rows, MIB, 0, MIB), AUTHOR)
    with pytest.raises(QuotaFull):
        await made.shelf.get(rows, MIB, own=False)
    assert own in made.roots and made.used < before + 0.1


async def test_replicas_have_a_part_and_the_acknowledged_ones_stay(
    tmp_path: Path, autojump_clock: object
) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    kept = await fill(made)
    assert 4 <= len(kept) <= 6 and made.used <= 12.1
    assert made.roots == set(kept), "the refused one is not here"
    assert made.shelf.fetched == len(kept) * 2 * MIB, "and was not fetched"
    size = made.node.library.store.used_bytes
    rows = [await made.made(2 * MIB) for _ in range(4)]
    for root in rows:
        await made.shelf.read(BlobPart(root, 2 * MIB, 0, MIB), OTHER)
        assert made.used <= 16.1
    assert set(kept) <= made.roots, "rows are evicted, and never a replica"
    with pytest.raises(QuotaFull):
        await made.quota.evict_for(LIMIT - size + 1)
    await made.quota.evict_for(LIMIT - size)
    assert set(kept) <= made.roots and not set(rows) & made.roots


async def test_this_node_s_own_jobs_go_on_when_strangers_fill_the_part(
    tmp_path: Path, autojump_clock: object
) -> None:
    made = await shelf_node(tmp_path, 64 * MIB)
    kept = await fill(made)
    await made.made(64 * MIB - int(made.used * MIB), here=True)
    root = await made.shelf.put(b"rows" * MIB, ME)
    assert root in made.roots, "the owner has asked for it, so it may exceed a default limit"
    result = await made.made(4 * MIB)
    assert len(await made.shelf.get(result, 4 * MIB)) == 4 * MIB
    part = await made.made(2 * MIB)
    assert len(await made.shelf.read(BlobPart(part, 2 * MIB, 0, 2 * MIB), ME)) == 2 * MIB
    with pytest.raises(NotEnoughDisk):
        await made.shelf.put(b"result" * MIB)
    assert {root, *kept} <= made.roots


async def test_rows_of_work_find_room_and_the_oldest_are_evicted(
    tmp_path: Path, autojump_clock: object
) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    await fill(made)
    rows = [await made.made(MIB) for _ in range(12)]
    for number, root in enumerate(rows):
        assert len(await made.shelf.read(BlobPart(root, MIB, 0, MIB), OTHER)) == MIB
        await trio.sleep(1)
        assert made.used <= 16.1
        assert root in made.roots and (number < 8 or rows[0] not in made.roots)
    with pytest.raises(JobsDiskFull):
        await made.shelf.get(await made.made(10 * MIB), 10 * MIB, own=False)
    result = await made.made(MIB)
    assert len(await made.shelf.get(result, MIB, own=False)) == MIB
    assert result not in made.roots


async def test_one_author_leaves_room_for_others(tmp_path: Path, autojump_clock: object) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    with pytest.raises(JobsDiskFull):
        for _ in range(20):
            await kept_by(made, AUTHOR, MIB)
    assert 4 <= len(made.roots) <= 6
    await kept_by(made, OTHER, MIB)


async def test_the_part_is_counted_again_after_a_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    kept = await fill(made)
    rows = await made.made(MIB)
    await made.shelf.read(BlobPart(rows, MIB, 0, MIB), OTHER)
    made.limit(LIMIT)
    with pytest.raises(JobsDiskFull):
        await kept_by(made, AUTHORS[-1])
    assert {rows, *kept} <= made.roots
    big = int(15.5 * MIB) - 2 * MIB * len(kept)
    await made.shelf.read(BlobPart(await made.made(big), big, 0, big), OTHER)
    assert set(kept) <= made.roots and rows not in made.roots
    await made.shelf.tidy_kept(lambda author: author == AUTHORS[0])
    assert made.roots == {kept[0]}
    await kept_by(made, AUTHORS[-1])


async def test_a_blob_that_does_not_arrive_takes_no_space(
    tmp_path: Path, autojump_clock: object
) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    for author in AUTHORS:
        root = await made.made(4 * MIB)
        for leaf in (await made.other.library.blobs.tree(root)).leaves[1:]:
            made.other.library.store.remove(leaf)
        with pytest.raises(ModelError):
            await made.shelf.keep(root, 4 * MIB, author)
        assert not made.roots and made.used < 0.1
    await kept_by(made, AUTHOR)


async def test_many_at_once_do_not_exceed_the_part(tmp_path: Path, autojump_clock: object) -> None:
    made = await shelf_node(tmp_path, LIMIT)
    roots, kept = [await made.made(2 * MIB) for _ in AUTHORS], list[str]()

    async def keep(root: str, author: str) -> None:
        try:
            await made.shelf.keep(root, 2 * MIB, author)
        except NotEnoughDisk:
            return
        kept.append(root)

    async with trio.open_nursery() as nursery:
        for root, author in zip(roots, AUTHORS, strict=True):
            nursery.start_soon(keep, root, author)
    assert 1 <= len(kept) <= 6 and made.used <= 16.1
    assert set(kept) == made.roots


async def test_a_blob_of_two_authors_is_kept_for_both(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A stranger with a job could otherwise have another author's replica deleted."""
    made = await shelf_node(tmp_path, LIMIT)
    root = await kept_by(made, OTHER)
    await made.shelf.keep(root, 2 * MIB, AUTHOR)
    await made.shelf.tidy_kept(lambda author: author == AUTHOR)
    assert made.roots == {root}
    await made.shelf.tidy_kept(lambda author: False)
    assert not made.roots
    root = await kept_by(made, OTHER)
    for author in AUTHORS[: defaults.PINNED_AUTHORS - 1]:
        await made.shelf.keep(root, 2 * MIB, author)
    with pytest.raises(ModelError, match="many authors"):
        await made.shelf.keep(root, 2 * MIB, AUTHOR)


async def test_what_a_peer_has_held_is_counted_also_for_this_node_s_jobs(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A claimant can name checkpoints of a job of this node's user."""
    made = await shelf_node(tmp_path, LIMIT)
    parts = [await made.made(2 * MIB) for _ in range(4)]
    for root in parts:
        await made.shelf.read(BlobPart(root, 2 * MIB, 0, 2 * MIB), ME, for_peer=True)
    with pytest.raises(JobsDiskFull):
        await made.shelf.check_room(dict.fromkeys(parts, 2 * MIB), ME)
    with pytest.raises(JobsDiskFull):
        await made.shelf.pin(parts, ME, for_peer=True)
    await made.shelf.pin(parts[:2], ME, for_peer=True)
    await made.quota.evict_for(LIMIT - 5 * MIB)
    assert set(parts[:2]) <= made.roots and len(made.roots) < 4
    with pytest.raises(ModelError, match="evicted"):
        await made.shelf.pin(parts, ME, for_peer=True)
