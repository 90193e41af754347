"""Fine-tunings that move: told to, killed, or continued from what another node has."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from shoal.dht.errors import ModelError, NotEnoughDisk, QuotaFull
from shoal.state.views.jobs import Job, new_claim
from shoal.tasks.errors import NoRoute, SessionError
from shoal.tasks.jobs.errors import BadSpec
from shoal.tasks.tuning.moving import defaults, state
from shoal.tasks.tuning.moving.spec import SizedBlob, TuningSpec, pack_tuning, read_tuning
from shoal.tasks.tuning.moving.standby import MOVE, STAND_BY
from shoal.tasks.tuning.trainer.curve import Point
from shoal.transport.identity import Identity
from shoal.transport.link.calls import Refusal, Reply
from shoal.transport.message import pack
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER
from tests.tasks.jobs.quotas import MIB, ShelfNode, shelf_node
from tests.tasks.tuning.moving.nodes import ROOT, Node, NodeShelf, World
from tests.tasks.tuning.numpy_chain import settings

pytestmark = pytest.mark.trio
STRANGER = Identity.from_seed(bytes([77]) * 32).peer
Clock = trio.testing.MockClock


def plain(points: list[Point]) -> list[Any]:
    return [(each.step, each.loss, each.held_out, each.norm, each.tokens) for each in points]


async def result_of(world: World, node: Node) -> tuple[list[Any], dict[Any, bytes]]:
    """Train to the end on a node. Return the curve and the state."""
    outcome = await node.train()
    alive, world.me.alive = world.me.alive, True
    loaded = await world.last(outcome)
    world.me.alive = alive
    learned = loaded.learned
    groups = {"a": learned.tensors, "m": learned.first, "v": learned.second, "b": learned.best}
    named = {(g, n): each.tobytes() for g, group in groups.items() for n, each in group.items()}
    return plain(loaded.points), named


async def undisturbed(folder: Path) -> Any:
    world = await World(folder / "plain").prepare()
    return await result_of(world, world.me)


class Killed(Exception):
    """Stands for `kill -9`: the node stores and says nothing after it."""


def at(call: int, do: Callable[[], Any]) -> Callable[[int], Any]:
    def disturb(number: int) -> None:
        if number == call:
            do()

    return disturb


@pytest.mark.parametrize("step", [1, 2, 3, 6, 7, 12])
async def test_told_to_move_another_node_ends_it_with_the_same_bytes(
    tmp_path: Path, autojump_clock: Clock, step: int
) -> None:
    world = await World(tmp_path / "moved").prepare()
    told = list[bool]()
    world.me.disturb = at(step, lambda: told.append(world.me.runner.stop(world.job.id)))
    with pytest.raises(SessionError, match="another node continues") as stopped:
        await world.me.train()
    assert stopped.value.code == "moved" and told == [True]
    assert not [*(world.me.folder / "trained").rglob("rows")], "no file stays behind"
    assert await result_of(world, world.other) == await undisturbed(tmp_path)
    calls = sum(chain.calls for node in world.nodes.values() for chain in node.chains)
    assert calls <= 12 + 1, "no step but the one in progress is computed again"


@pytest.mark.parametrize("step", [2, 5, 9, 12])
async def test_killed_another_node_ends_it_with_the_same_bytes(
    tmp_path: Path, autojump_clock: Clock, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what it holds itself: the dead node answers nothing."""
    monkeypatch.setattr(defaults, "STAND_BY_RATE", (1e9, 1e9))
    world = await World(tmp_path / "killed").prepare()
    world.me.step_s = 1.0  # in which a checkpoint reaches the other node

    def die() -> None:
        world.me.alive = False
        raise Killed

    world.me.disturb = at(step, die)
    with pytest.raises((Killed, BaseExceptionGroup)):
        await world.me.train()
    fetched = world.other.shelf.fetched
    found = await result_of(world, world.other)
    assert found == await undisturbed(tmp_path)
    assert world.other.shelf.fetched == fetched, "it had everything"
    assert world.other.chains[0].calls == 12 - (step - 1), "it began at the last checkpoint"


async def test_back_and_forth_it_moves_only_what_has_changed(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world = await World(tmp_path / "often").prepare()
    for node in [world.me, world.other] * 3:
        node.disturb = at(2, lambda node=node: node.runner.stop(world.job.id))  # type: ignore[misc]
        with pytest.raises(SessionError):
            await node.train()
    world.me.disturb = None
    assert await result_of(world, world.me) == await undisturbed(tmp_path)
    for node in (world.me, world.other):
        assert len(node.shelf.asked) == len(set(node.shelf.asked)), "nothing is fetched twice"
    assert world.other.shelf.asked.count(world.spec.rows.root) == 1
    vaults = [world.me.vault, world.other.vault]
    assert 0 < sum(vault.fetched for vault in vaults) < sum(vault.whole for vault in vaults)


async def test_what_a_claim_only_says_is_not_proven(tmp_path: Path, autojump_clock: Clock) -> None:
    world = await World(tmp_path / "liar").prepare()
    world.me.disturb = at(5, lambda: world.me.runner.stop(world.job.id))
    with pytest.raises(SessionError):
        await world.me.train()
    (saved,) = [claim.saved for claim in world.jobs.saved_of(world.job.id)]
    claim = new_claim(ME, world.job.id, 1, step=11, saved=saved)
    assert 4 <= await world.other.runner.proven(world.job, claim) <= 5
    claim = new_claim(ME, world.job.id, 1, step=11, saved=bytes(32) + (9).to_bytes(8))
    with pytest.raises(ModelError, match="no node has it"):
        await world.other.runner.proven(world.job, claim)


async def test_checkpoints_are_held_only_for_the_trainer(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world = await World(tmp_path / "held").prepare()
    world.me.disturb = at(4, lambda: world.me.runner.stop(world.job.id))
    with pytest.raises(SessionError):
        await world.me.train()
    work = world.jobs.saved_of(world.job.id)[0].saved
    asked = {"job": world.job.id, "saved": work}
    hear = world.other.hear
    await trio.sleep(60)
    assert isinstance(await hear(ME, STAND_BY, asked), Reply)
    for peer, header, code in (
        (AUTHOR, asked, "not-claimed"),
        (ME, {**asked, "saved": work[:-1]}, "bad-request"),
        (ME, {**asked, "saved": work[:32] + b"\xff" * 8}, "bad-request"),
    ):
        answer = await hear(peer, STAND_BY, header)
        assert isinstance(answer, Refusal) and answer.code == code, answer
    world.other.own = set()
    answer = await hear(ME, STAND_BY, asked)
    assert isinstance(answer, Refusal) and answer.code == "no-route"
    world.other.stores = False
    answer = await hear(ME, STAND_BY, asked)
    assert isinstance(answer, Refusal) and answer.code == "no-replica"


async def test_one_trainer_gives_no_flood_of_checkpoints(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world = await World(tmp_path / "flood").prepare()
    world.me.claim(new_claim(ME, world.job.id, 1))
    asked = {"job": world.job.id, "saved": bytes(32) + (9).to_bytes(8)}
    answers = [await world.other.hear(ME, STAND_BY, asked) for _ in range(20)]
    taken = sum(isinstance(each, Refusal) and each.code != "busy" for each in answers)
    assert 1 <= taken <= defaults.STAND_BY_RATE[0] + 1


async def test_only_the_claim_that_counts_has_checkpoints_held(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """Any peer may claim any job."""
    world = await World(tmp_path / "claims").prepare()
    claims = [new_claim(peer, world.job.id, 1) for peer in (ME, STRANGER)]
    for claim in claims:
        world.me.claim(claim)
    first, second = [claim.claimant for claim in world.jobs.claims_of(world.job.id)]
    asked = {"job": world.job.id, "saved": bytes(32) + (9).to_bytes(8)}
    for peer, code in ((first, "no-source"), (second, "not-claimed")):
        answer = await world.other.hear(peer, STAND_BY, asked)
        assert isinstance(answer, Refusal) and answer.code == code, answer


async def test_all_trainers_together_have_a_rate(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identities cost nothing, so each of these claims comes from another one."""
    monkeypatch.setattr(defaults, "STAND_BY_TOTAL", (8.0, 1.0))
    world, codes = await World(tmp_path / "total").prepare(), []
    asked = {"job": world.job.id, "saved": bytes(32) + (9).to_bytes(8)}
    for number in range(20):
        peer = Identity.from_seed(bytes([100 + number]) * 32).peer
        world.me.claim(new_claim(peer, world.job.id, number + 1))
        answer = await world.other.hear(peer, STAND_BY, asked)
        codes.append(answer.code if isinstance(answer, Refusal) else "")
    assert codes[:8] == ["no-source"] * 8 and codes[-8:] == ["busy"] * 8


async def real(world: World, made: ShelfNode) -> None:
    """Give both nodes of a world real shelves. The one that is asked has a disk limit."""
    for node, shelf in ((world.me, made.author_s_shelf()), (world.other, made.shelf)):
        node.vault.shelf = node.checkpoints.shelf = shelf
        node.shelf = cast(NodeShelf, shelf)
    await world.prepare()


async def checkpoint_of(world: World) -> dict[str, object]:
    """Train for a few steps, and return the request to hold the checkpoint."""
    world.other.alive = False
    world.me.disturb = at(5, lambda: world.me.runner.stop(world.job.id))
    with pytest.raises(SessionError):
        await world.me.train()
    world.other.alive = True
    saved = world.me.vault.latest(world.job.id)
    assert saved is not None
    return {"job": world.job.id, "saved": saved.work.packed()}


async def test_a_checkpoint_that_is_held_is_not_evicted(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world, made = World(tmp_path / "real"), await shelf_node(tmp_path, 128 * MIB)
    await real(world, made)
    asked = await checkpoint_of(world)
    assert isinstance(await world.other.hear(ME, STAND_BY, asked), Reply)
    held = world.other.vault.latest(world.job.id)
    assert held is not None and held.roots | {world.spec.rows.root} == made.roots
    with pytest.raises(QuotaFull):
        await made.quota.evict_for(128 * MIB - made.node.library.store.used_bytes + 1)
    assert held.roots <= made.roots


async def test_a_checkpoint_without_room_is_refused_and_leaves_nothing(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    world, made = World(tmp_path / "full"), await shelf_node(tmp_path, 8 * MIB)
    await real(world, made)
    asked = await checkpoint_of(world)
    own = await made.made(10 * MIB, here=True)
    before = made.used
    for _ in range(3):
        answer = await world.other.hear(ME, STAND_BY, asked)
        assert isinstance(answer, Refusal) and answer.code == "full", answer
    assert not world.other.vault.jobs and made.used < before + 0.05 and own in made.roots


async def test_a_checkpoint_that_does_not_fit_is_deleted(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, made = World(tmp_path / "bad"), await shelf_node(tmp_path, 128 * MIB)
    await real(world, made)
    asked = await checkpoint_of(world)
    monkeypatch.setattr(state, "read_points", refuse)
    answer = await world.other.hear(ME, STAND_BY, asked)
    assert isinstance(answer, Refusal) and answer.code == "bad-checkpoint", answer
    assert not made.roots


def refuse(data: bytes) -> list[Point]:
    raise state.BadState("a test says so")


async def test_a_node_without_room_does_not_begin_at_an_older_checkpoint(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """It would repeat steps that another node need not repeat, and judge the trainer as lazy."""
    world, made = World(tmp_path / "older"), await shelf_node(tmp_path, 8 * MIB)
    await real(world, made)
    asked = await checkpoint_of(world)
    world.me.claim(new_claim(ME, world.job.id, 1, step=3, saved=asked["saved"]))  # type: ignore[arg-type]
    await made.made(10 * MIB, here=True)
    known = await world.other.checkpoints.known(world.job)
    with pytest.raises(NotEnoughDisk):
        await world.other.checkpoints.newest(world.job, known)
    (claim,) = world.jobs.saved_of(world.job.id)
    with pytest.raises(NotEnoughDisk):
        await world.other.runner.proven(world.job, claim)


async def test_only_the_author_has_a_trainer_stop(tmp_path: Path, autojump_clock: Clock) -> None:
    world = await World(tmp_path / "told").prepare()
    answers = list[Any]()

    def tell() -> None:
        for peer in (OTHER, AUTHOR):
            call: Any = SimpleNamespace(peer=peer, header={"job": world.job.id})
            answers.append(world.me.handlers[MOVE](call))

    world.me.disturb = at(3, tell)
    with pytest.raises(SessionError):
        await world.me.train()
    assert isinstance(answers[0], Refusal) and answers[0].code == "not-yours"
    assert isinstance(answers[1], Reply)


async def test_other_nodes_models_are_not_trained(tmp_path: Path, autojump_clock: Clock) -> None:
    world = await World(tmp_path / "foreign").prepare()
    world.me.own = set()
    with pytest.raises(NoRoute):
        await world.me.train()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"layers": 3}, "bad-spec"),
        ({"modules": ("qkv_proj",)}, "bad-spec"),
        ({"length": 256}, "bad-spec"),
        ({"batch": 1024, "length": 100}, "too-large"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path,
    autojump_clock: Clock,
    changes: dict[str, Any],
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "POSITIONS", 1 << 16)
    world = await World(tmp_path / "wrong", **changes).prepare()
    assert (await world.me.train()).error == code


@pytest.mark.parametrize("longest", [1, 18])
async def test_rows_of_other_lengths_than_said_are_refused(
    tmp_path: Path, autojump_clock: Clock, longest: int
) -> None:
    """They would take more memory than the settings say."""
    world = await World(tmp_path / "long").prepare()
    data = np.array([*[1] * (longest + 5), longest, 5, 2], "<u4").tobytes()
    rows = SizedBlob(await world.me.shelf.put(data), len(data))
    world.submit(TuningSpec(ROOT, settings(), rows, hashlib.sha256(data).hexdigest()))
    assert (await world.me.train()).error == "damaged"


@pytest.mark.parametrize(
    "changes",
    [
        {"root": "cd" * 32},
        {"settings": {"rank": 0}},
        {"rows": ["ab" * 32, 0]},
        {"rows": ["ab" * 32, 1 << 30]},
        {"start": ["zz" * 32, 1]},
        {"name": "x" * 200},
        {"data": "ab"},
    ],
)
async def test_bad_specs(changes: dict[str, Any]) -> None:
    good = TuningSpec(ROOT, settings(), SizedBlob("cd" * 32, 100), "ef" * 32, "tiny")
    assert read_tuning(pack_tuning(good)) == good
    with pytest.raises(BadSpec):
        read_tuning(pack({**good.fields(), **changes}))
    whole = settings(full=True, rank=0, alpha=0.0, modules=())
    for bad, words in (
        (settings(together="us"), "does not move"),
        (whole, "does not move"),
        (settings(rank=0), "rank, alpha and modules"),
        (settings(alpha=0.0), "rank, alpha and modules"),
        (settings(modules=()), "rank, alpha and modules"),
        (settings(full=True), "rank, alpha and modules"),
    ):
        with pytest.raises(BadSpec, match=words):
            read_tuning(pack(TuningSpec(ROOT, bad, good.rows, good.data)))
    await trio.lowlevel.checkpoint()


async def test_the_trainer_leaves_its_place_to_an_author_that_lacks_one(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """With a checkpoint, from which it goes on elsewhere."""
    world = await World(tmp_path / "place").prepare()
    world.me.step_s = 50.0
    places, began = world.me.runner.places, trio.current_time()
    places.now = trio.current_time

    async def ask() -> None:
        while True:
            places.queue.came(STRANGER, "other", 1.0, trio.current_time())
            places.has_one(Job("other", STRANGER, "finetune"))
            await trio.sleep(1)

    with places.taken(Job("first", AUTHOR, "finetune")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with pytest.raises(SessionError, match="another node continues"):
                await world.me.train()
            nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= defaults.PLACE_LEAD + defaults.PLACE_LOOK
    assert places.has_one(Job("other", STRANGER, "finetune"))
    (claim,) = world.jobs.saved_of(world.job.id)
    assert claim.step >= 3
    assert await result_of(world, world.other) == await undisturbed(tmp_path)


@pytest.mark.parametrize("code", ["bad-adapter", "not-finite"])
async def test_a_tuning_that_chains_refuse_fails_with_a_code(
    tmp_path: Path, autojump_clock: Clock, code: str
) -> None:
    """The author's link would end if the error came as a bug."""
    world = await World(tmp_path / "refused").prepare()

    def refuse_all(number: int) -> None:
        if number >= 3:
            raise SessionError(code, "no")

    world.me.disturb = refuse_all
    outcome = await world.me.train()
    assert outcome.error == "chain-refused" and "no" in outcome.message


async def test_a_trainer_whose_disk_is_full_leaves_the_job_to_others(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World(tmp_path / "no room").prepare()

    async def newest(*_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise NotEnoughDisk(tmp_path, 1, 0)

    monkeypatch.setattr(world.me.checkpoints, "newest", newest)
    with pytest.raises(NotEnoughDisk):
        await world.me.train()
