"""Volunteers over real links and feeds, on simulated computers."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.tasks.tuning.averaging.averager import decode_base, first_base
from shoal.tasks.tuning.averaging.codecs import Codec, CodecName
from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.memory import Octets, SpareMemory
from shoal.tasks.tuning.averaging.outer import OuterState
from shoal.tasks.tuning.averaging.steps import Step
from shoal.tasks.tuning.averaging.terms import RunTerms
from tests.tasks.tuning.averaging.volunteers import Group, run

TERMS = RunTerms(
    name="test",
    subject=b"",
    values=20_000,
    codec=Codec("int8"),
    inner_steps=10,
    patience=20.0,
    settle=3.0,
)


def test_volunteers_average_over_real_links() -> None:
    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(4)]
        await group.until(lambda: min(len(member.bases) for member in members) > 6)
        for number in range(1, 6):
            bases = [member.bases[number] for member in members]
            assert len({base.step for base in bases}) == 1
            assert len({base.state.encode() for base in bases}) == 1
            step = members[0].averager.rounds.ledger.get(bases[0].step)
            assert step is not None and len(step.accepted) == 4
        loss = await members[0].hill.loss(members[0].bases[-1].values)
        assert loss < 0.3
        assert members[0].parcels.received < 7 * 3 * 1.2 * TERMS.update_bytes

    run(TERMS, body)


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_a_round_uses_the_memory_of_earlier_ones(
    codec: CodecName, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, found = list[int](), SpareMemory._found

    def watched(memory: SpareMemory, size: int) -> Octets | None:
        piece = found(memory, size)
        if piece is None:
            fresh.append(size)
        return piece

    monkeypatch.setattr(SpareMemory, "_found", watched)
    terms = replace(TERMS, codec=Codec(codec))

    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(3)]
        for member in members:
            member.keeps = 1
        await group.until(lambda: members[0].averager.base.round > 6)
        assert len(fresh) > 15
        fresh.clear()
        await group.until(lambda: members[0].averager.base.round > 12)
        assert fresh == []

    run(terms, body)


def test_sparse_updates_of_others_are_kept_as_their_bytes() -> None:
    terms = replace(TERMS, codec=Codec("sparse", 128))

    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(3)]
        await group.until(lambda: min(len(member.bases) for member in members) > 4)
        for member in members:
            kept = list(member.averager.rounds.updates.values())
            assert len(kept) > 5
            assert not any(isinstance(known.source, np.ndarray) for known in kept)
            assert all(known.vector.shape == (terms.values,) for known in kept)

    run(terms, body)


def test_a_state_is_held_for_others_without_a_copy() -> None:
    async def body(group: Group) -> None:
        member = await group.start(group.made())
        await group.until(lambda: member.averager.base.round > 1 and bool(member.root))
        held = member.parcels.stored[member.root].parts
        mine = member.averager.base.values
        assert any(np.shares_memory(np.frombuffer(part, np.uint8), mine) for part in held)

    run(TERMS, body)


@pytest.mark.ci
def test_a_volunteer_joins_late_and_one_leaves() -> None:
    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(3)]
        await group.until(lambda: len(members[0].bases) > 5)
        late = await group.start(group.made())
        await group.until(lambda: len(late.bases) > 3)
        assert late.bases[1].round > 4
        await members[0].machine.crash()
        before = late.averager.base.round
        await group.until(lambda: late.averager.base.round > before + 4)
        step = late.averager.rounds.ledger.get(late.averager.base.step)
        assert step is not None
        assert {e.peer for e in step.accepted} == {m.peer for m in group.members[1:]}

    run(TERMS, body)


def test_poison_is_refused_over_real_links() -> None:
    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(3)]
        bad = group.made()
        bad.spoil = lambda update: -update
        await group.start(bad)
        await group.until(lambda: len(members[0].bases) > 6)
        assert set(members[0].averager.base.state.points) == {bad.peer}
        codes = {error.code for error in members[0].averager.rounds.refusals.values()}
        assert codes == {"loss"}

    run(TERMS, body)


def test_a_volunteer_with_another_state_goes_on_from_that_of_the_others() -> None:
    async def body(group: Group) -> None:
        members = [await group.start(group.made()) for _ in range(3)]
        await group.until(lambda: min(len(member.bases) for member in members) > 3)
        rounds = members[0].averager.rounds
        right = rounds.computed

        def wrong(step: Step, state: OuterState) -> None:
            rounds.computed = right  # type: ignore[method-assign]
            right(step, replace(state, values=state.values + np.float32(1)))

        rounds.computed = wrong  # type: ignore[method-assign]
        await group.until(lambda: rounds.diverged is not None)
        step = rounds.diverged
        await group.until(lambda: rounds.head == step and bool(rounds.root))
        theirs = [m for m in members[1].bases if m.step == step]
        assert theirs and members[0].averager.base.state.encode() == theirs[0].state.encode()
        await group.until(lambda: rounds.state.round > theirs[0].round + 3)
        assert rounds.diverged is None
        after = rounds.ledger.get(rounds.head)
        assert after is not None and len(after.accepted) == 3

    run(TERMS, body)


def test_a_run_with_other_terms_is_another_run() -> None:
    async def body(group: Group) -> None:
        one = await group.start(group.made())
        two = group.made()
        two.terms = replace(TERMS, inner_steps=11)
        await group.start(two)
        await group.until(lambda: min(len(one.bases), len(two.bases)) > 4)
        step = one.averager.rounds.ledger.get(one.averager.base.step)
        assert step is not None and len(step.entries) == 1

    run(TERMS, body)


def test_what_a_run_leaves_behind_is_deleted() -> None:
    async def body(group: Group) -> None:
        one, two = [await group.start(group.made()) for _ in range(2)]
        await group.until(lambda: len(one.bases) > 3)
        assert one.state.keys("tuning")
        one.averager._nursery.cancel_scope.cancel()  # type: ignore[union-attr]
        await group.until(lambda: not one.state.keys("tuning"), 5)
        view = two.state.views.tunings
        await group.until(lambda: view.authors(TERMS.id) == (two.peer,), 5)
        assert not one.parcels.stored

    run(TERMS, body)


def test_a_checkpoint_has_the_errors_of_the_codec() -> None:
    terms = replace(TERMS, values=300, codec=Codec("int4"))
    base = first_base(terms, np.ones(300, np.float32))
    residual = np.arange(300, dtype=np.float32)
    data = replace(base, residual=residual).encode()
    back = decode_base(terms, data)
    assert back.residual is not None
    np.testing.assert_array_equal(back.residual, residual)
    np.testing.assert_array_equal(back.values, base.values)
    residual[7] = np.nan
    for bad in (data[:-4], data[:40], replace(base, residual=residual).encode()):
        with pytest.raises(BadUpdate):
            decode_base(terms, bad)


def test_a_checkpoint_of_a_node_comes_back() -> None:
    async def body(group: Group) -> None:
        one = await group.start(group.made())
        await group.until(lambda: len(one.bases) > 3)
        base = one.averager.base
        back = decode_base(TERMS, base.encode())
        assert (back.step, back.round) == (base.step, base.round)
        np.testing.assert_array_equal(back.values, base.values)

    run(TERMS, body)
