"""Sealed fine-tunings that move: what other nodes store, and which nodes can continue them."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio.testing
from msgspec.structs import replace as changed

from shoal.state.views.jobs import Job, job_id
from shoal.tasks.errors import SessionError
from shoal.tasks.jobs import defaults as job_defaults
from shoal.tasks.jobs.errors import BadSpec, Unsealable
from shoal.tasks.jobs.results import SavedWork
from shoal.tasks.jobs.sealing.seals import JobSeals
from shoal.tasks.jobs.sealing.states import StateSeal
from shoal.tasks.tuning.moving.defaults import KIND
from shoal.tasks.tuning.moving.spec import (
    SizedBlob,
    pack_tuning,
    read_tuning,
    sealed_tuning,
)
from shoal.tasks.tuning.moving.state import FORMAT, BadState
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER
from tests.tasks.jobs.sealing.keys import AUTHOR as AUTHOR_IDENTITY
from tests.tasks.jobs.sealing.keys import ME as ME_IDENTITY
from tests.tasks.jobs.sealing.keys import WORKER, seals
from tests.tasks.tuning.moving.nodes import World
from tests.tasks.tuning.moving.test_moving import at, result_of, undisturbed

pytestmark = pytest.mark.trio
Clock = trio.testing.MockClock
assert (AUTHOR_IDENTITY.peer, ME_IDENTITY.peer, WORKER.peer) == (AUTHOR, ME, OTHER)


async def sealed(folder: Path, mine: int = 7, others: int = 7) -> World:
    """Return a fine-tuning whose author knows secret 7, and two nodes that know some."""
    world = await World(folder).prepare()
    author, draft = seals(AUTHOR_IDENTITY, 7), Job(job_id(AUTHOR, b"n" * 16), AUTHOR, KIND)
    plain = world.me.shelf.blobs.pop(world.spec.rows.root)
    rows = author.seal_rows(draft, plain, author.newest(), most=job_defaults.INPUT_BYTES)
    spec = changed(world.spec, rows=SizedBlob(await world.me.shelf.put(rows), len(rows)))
    world.submit(sealed_tuning(spec, draft, author, author.newest()))
    assert world.job.id == draft.id
    for node, known in ((world.me, seals(ME_IDENTITY, mine)), (world.other, seals(WORKER, others))):
        node.checkpoints.seals = known
    world.terms = replace(world.terms, seal=author.state_seal(draft))
    return world


async def test_it_moves_and_ends_with_the_same_bytes(tmp_path: Path, autojump_clock: Clock) -> None:
    world = await sealed(tmp_path / "sealed")
    for node in [world.me, world.other] * 3:
        node.disturb = at(2, lambda node=node: node.runner.stop(world.job.id))  # type: ignore[misc]
        with pytest.raises(SessionError):
            await node.train()
    world.me.disturb = None
    assert await result_of(world, world.me) == await undisturbed(tmp_path)
    for node in (world.me, world.other):
        assert len(node.shelf.asked) == len(set(node.shelf.asked)), "nothing is fetched twice"


async def test_no_blob_and_no_spec_can_be_read_without_the_key(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """Fails if a part is stored as it is: floats of a small adapter have a byte in common."""
    for world, readable in (
        (await World(tmp_path / "plain").prepare(), True),
        (await sealed(tmp_path / "sealed"), False),
    ):
        data = (world.folder / "rows").read_bytes()
        seen = set[bytes]()
        put = world.me.shelf.put

        async def watched(data: bytes, *args: str, put: object = put, **more: bool) -> str:
            seen.add(data)  # noqa: B023
            return await put(data, *args, **more)  # type: ignore[operator, no-any-return]

        seen |= set(world.me.shelf.blobs.values())
        world.me.shelf.put = watched  # type: ignore[method-assign, assignment]
        await world.me.train()
        every = b"".join(seen)
        for word in (data[:64], FORMAT.encode(), b'"loss":', b'"step":', world.data.encode()):
            assert (word in every) is readable or word == world.data.encode()
        assert (b"tiny" in world.job.spec) is readable
        assert (world.data.encode() in world.job.spec) is readable


async def test_a_node_without_the_key_neither_trains_nor_holds(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """A removed member has the keys of before, number 6."""
    world = await sealed(tmp_path / "sealed", others=6)
    assert world.me.checkpoints.has_key(world.job)
    assert not world.other.checkpoints.has_key(world.job)
    with pytest.raises(Unsealable) as raised:
        await world.other.train()
    assert raised.value.code == "no-key"
    await world.me.train()
    assert not world.other.checkpoints.jobs


async def test_a_checkpoint_of_another_job_or_a_changed_one_is_refused(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world = await sealed(tmp_path / "sealed")
    await world.me.train()
    saved = world.me.vault.latest(world.job.id)
    assert saved is not None
    other = Job(job_id(AUTHOR, b"m" * 16), AUTHOR, KIND)
    terms = replace(world.terms, seal=seals(AUTHOR_IDENTITY, 7).state_seal(other))
    with pytest.raises(BadState, match="cannot be opened"):
        await world.me.vault.load(saved.work, terms)
    data = world.me.shelf.blobs[saved.work.root]
    root = await world.me.shelf.put(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BadState, match="cannot be opened"):
        await world.me.vault.load(SavedWork(root, len(data)), world.terms)
    await world.me.vault.load(saved.work, world.terms)


def state(*secrets: bytes) -> StateSeal:
    return StateSeal(secrets, b"place", "piece 1 of 1")


async def test_equal_parts_have_equal_envelopes_and_any_known_key_opens() -> None:
    data = bytes(1000)
    envelope = state(b"a").seal(data)
    assert envelope == state(b"a", b"b").seal(data) and len(envelope) == len(data) + StateSeal.extra
    assert envelope != state(b"b").seal(data)
    several = state(b"b", b"a")
    assert several.open(envelope) == several.open(envelope) == data
    for none, code in ((state(b"b"), "bad-seal"), (state(), "no-key")):
        with pytest.raises(Unsealable) as raised:
            none.open(envelope)
        assert raised.value.code == code
    with pytest.raises(Unsealable):
        state().seal(data)


async def test_a_sealed_spec_shows_neither_name_nor_digest(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world = await sealed(tmp_path / "sealed")
    spec = read_tuning(world.job.spec)
    assert pack_tuning(spec) == world.job.spec and spec.seal is not None
    for wrong in (
        changed(spec, name="tiny"),
        changed(spec, data="ab" * 32),
        changed(spec, seal=changed(spec.seal, mark=b"", hidden=b"")),
    ):
        with pytest.raises(BadSpec):
            read_tuning(pack_tuning(wrong))
    unsealed: JobSeals = seals(WORKER)
    assert not unsealed.has_key(world.job.spec)
