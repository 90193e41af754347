"""Sessions of a chain leave out positions that all stages have, and none that one of them lacks."""

from typing import Any

import pytest
import torch

from shoal.tasks.engine.interface import (
    DroppedEvent,
    FailedEvent,
    HiddenEvent,
    Parts,
    Span,
    TokenEvent,
    Want,
)
from shoal.tasks.engine.kv import arrival
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable

from .test_arrival import FULL, IDS, NAMES, cached, opened, read, wrong

Run = tuple[int, int]
ENDS = (0, 2, 4)  # of the layers of both stages
OTHER = (*IDS[:16], *IDS[:32], *IDS[:22])
"""Another text, which has the same first block."""


class ChainStage:
    """A stage of a chain in a worker, and a session that `expects` KV ahead of it."""

    def __init__(self, checkpoint: Any, driver: Any, place: int) -> None:
        self.parts = Parts(not place, ENDS[place], ENDS[place + 1], bool(place))
        self.worker = driver(checkpoint("Llama").shard(self.parts))
        self.rows: list[Run] = []
        compute = self.worker.shard.compute
        forward = compute.forward

        def note(pieces: Any, stop: Any = None) -> Any:
            for piece in pieces:
                self.rows.append((piece.position, piece.position + piece.count))
            return forward(pieces, stop)

        compute.forward = note
        self.name = b""

    def open(self, name: bytes, *, exact: bool = True, expects: bool = True) -> int:
        self.name = opened(self.worker, name, exact=exact)
        self.rows.clear()
        if expects:
            self.expect(True)
        return int(self.session.table.length)

    @property
    def session(self) -> Any:
        return self.worker.core.sessions[self.name]

    def expect(self, expected: bool) -> None:
        with torch.inference_mode():
            self.worker.core.handle(("expect", self.name, expected), memoryview(b""))

    def bring(self, part: Any, run: Run, *, doubted: bool = False) -> Any:
        return self.worker.request("bring", self.name, doubted, *run, payload=bytes(part))[:2]

    def bring_all(self, source: "ChainStage", run: Run, *, form: str = "exact", **how: Any) -> None:
        for layer in range(self.parts.start, self.parts.stop):
            part = read(source.worker, *run, layer, layer + 1, form=form)[-1]
            assert self.bring(part, run, **how)[0] == "ok"

    def span(self, start: int, data: Any, count: int, *, epoch: int = 0) -> Any:
        """Compute a span and return its event."""
        end = start + count
        want: Want = "token" if self.parts.head and end == len(IDS) else "hidden"
        tokens, hidden = (data, None) if self.parts.embedding else (None, data)
        self.worker.frames.clear()
        self.worker.submit(
            Span(self.name, epoch, start, count, tokens=tokens, hidden=hidden, want=want)
        )
        return self.worker.events()[-1]


class Chain:
    """Two stages, and two that have computed the text before."""

    def __init__(self, checkpoint: Any, driver: Any, **how: Any) -> None:
        self.sources = [ChainStage(checkpoint, driver, place) for place in (0, 1)]
        self.stages = [ChainStage(checkpoint, driver, place) for place in (0, 1)]
        for source in self.sources:
            source.open(b"source", expects=False)
        self.sources_said = self.ask(self.sources, (0, len(IDS)))
        for stage in self.stages:
            stage.open(b"target", **how)

    @staticmethod
    def ask(stages: list[ChainStage], *runs: Run, ids: Any = IDS, epoch: int = 0) -> Any:
        """Send spans through stages, and return the last event."""
        event: Any = None
        for start, stop in runs:
            event = stages[0].span(start, ids[start:stop], stop - start, epoch=epoch)
            for stage in stages[1:]:
                if isinstance(event, HiddenEvent):
                    event = stage.span(start, bytes(event.data), stop - start, epoch=epoch)
        return event

    def bring_all(self, run: Run, **how: Any) -> None:
        for stage, source in zip(self.stages, self.sources, strict=True):
            stage.bring_all(source, run, **how)


@pytest.fixture
def chain(checkpoint: Any, driver: Any) -> Chain:
    return Chain(checkpoint, driver)


def failed(event: Any, code: str = "gap") -> bool:
    return isinstance(event, FailedEvent) and event.code == code


def test_a_span_leaves_out_what_all_stages_have(chain: Chain, checkpoint: Any) -> None:
    chain.ask(chain.stages, (0, 16))
    chain.bring_all((48, 64))
    chain.bring_all((32, 48))
    chain.ask(chain.stages, (16, 32))
    event = chain.ask(chain.stages, (64, 70))
    assert event.token == checkpoint("Llama").greedy(IDS, 1)[0] == chain.sources_said.token
    for stage in chain.stages:
        assert stage.rows == [(0, 16), (16, 32), (64, 70)]
        stage.worker.request("close", stage.name, payload=NAMES)
        assert cached(stage.worker) == FULL
        pool = stage.worker.shard.pool
        assert pool.free + pool.cached == pool.total and not pool.promised


def test_what_arrives_is_not_left_out_before_a_span_says_so(chain: Chain, checkpoint: Any) -> None:
    """Later stages need the states of all positions that are sent."""
    chain.bring_all((0, 64))
    event = chain.ask(chain.stages, (0, 32), (32, 70))
    assert event.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert all(stage.rows == [(0, 32), (32, 70)] for stage in chain.stages)


def test_a_stage_keeps_what_it_has_cached_while_it_computes_it_again(
    chain: Chain, checkpoint: Any
) -> None:
    """The first stage has cached the text, and the second one is new."""
    first, second = chain.sources[0], chain.stages[1]
    source = first.name
    before = [bytes(read(first.worker, 0, 64, 0, 2, session=source)[-1])]
    assert first.open(b"again") == FULL
    first.expect(False)
    for run in ((48, 64), (32, 48)):
        second.bring_all(chain.sources[1], run)
    event = chain.ask([first, second], (0, 20), (20, 32), (64, 70))
    assert event.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert first.rows == second.rows == [(0, 20), (20, 32), (64, 70)]
    before.append(bytes(read(first.worker, 0, 64, 0, 2, session=source)[-1]))
    assert before[0] == before[1], "the other session's blocks are as they were"
    kept = bytes(read(first.worker, 0, 64, 0, 2, session=first.name)[-1])
    assert len(kept) == len(before[0])
    first.worker.request("close", first.name, payload=NAMES)
    assert cached(first.worker) == FULL


def test_a_stage_without_other_sessions_keeps_what_it_has_cached(
    chain: Chain, checkpoint: Any
) -> None:
    """Its blocks have names, and no other user."""
    first, second = chain.sources[0], chain.stages[1]
    first.worker.request("close", first.name, payload=NAMES)
    assert first.open(b"again") == FULL
    second.bring_all(chain.sources[1], (32, 64))
    event = chain.ask([first, second], (0, 32), (64, 70))
    assert event.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert first.rows == second.rows == [(0, 32), (64, 70)]
    assert cached(first.worker) == FULL
    first.worker.request("close", first.name, payload=NAMES)
    pool = first.worker.shard.pool
    assert cached(first.worker) == FULL and pool.free + pool.cached == pool.total


LACKS = ["all", "a layer", "a block", "the beginning", "a part of a block"]


@pytest.mark.parametrize("lack", LACKS)
def test_a_span_does_not_leave_out_what_a_stage_lacks(lack: str, chain: Chain) -> None:
    """The gateway says that all stages have it. In its place may be KV of another gateway."""
    first, source = chain.stages[0], chain.sources[0]
    if lack == "a part of a block":
        first.bring_all(source, (16, 64))
    chain.ask([first], (0, 20) if lack == "a part of a block" else (0, 16))
    if lack == "a layer":
        part = read(source.worker, 16, 64, 0, 1)[-1]
        first.bring(part, (16, 64))
    elif lack == "a block":
        first.bring_all(source, (16, 48))
    elif lack == "the beginning":
        first.bring_all(source, (32, 64))
    event = chain.ask([first], (64, 70))
    assert failed(event)
    assert first.session.table.length in (16, 20)
    assert not failed(chain.ask([first], (first.session.table.length, 70))), "it may compute it"


def test_a_span_within_a_block_leaves_nothing_out(chain: Chain) -> None:
    first, source = chain.stages[0], chain.sources[0]
    chain.ask([first], (0, 16))
    first.bring_all(source, (16, 64))
    assert failed(chain.ask([first], (50, 70)))


def test_nothing_is_left_out_after_another_text_has_begun(chain: Chain) -> None:
    first, source = chain.stages[0], chain.sources[0]
    chain.ask([first], (0, 16), (16, 32))
    first.bring_all(source, (32, 64))
    chain.ask([first], (0, 32), ids=OTHER, epoch=1)
    assert failed(chain.ask([first], (64, 70), ids=OTHER, epoch=1))
    part = read(source.worker, 32, 64, 0, 2)[-1]
    assert first.bring(part, (32, 64)) == ("refused", "gap")


def test_what_was_left_out_is_computed_if_it_is_sent_later(chain: Chain, checkpoint: Any) -> None:
    """After a stage was lost, others need the states of all positions."""
    chain.ask(chain.stages, (0, 16))
    chain.bring_all((16, 64))
    chain.ask(chain.stages, (64, 70))
    event = chain.ask(chain.stages, (32, 48), (48, 70), epoch=1)
    assert isinstance(event, TokenEvent) and event.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert all(stage.rows[-2:] == [(32, 48), (48, 70)] for stage in chain.stages)


def test_a_stage_that_expects_nothing_drops_what_it_computes_again(chain: Chain) -> None:
    """As with a gateway that leaves nothing out."""
    first = chain.sources[0]
    assert first.open(b"again", expects=False) == FULL
    chain.ask([first], (0, 16))
    assert failed(chain.ask([first], (64, 70)))


@pytest.mark.parametrize("form", ["exact", "int8"])
def test_a_doubted_stage_compares_the_block_behind_what_is_left_out(
    form: str, checkpoint: Any, driver: Any
) -> None:
    chain = Chain(checkpoint, driver, exact=form == "exact")
    chain.ask(chain.stages, (0, 16))
    chain.bring_all((16, 64), form=form, doubted=True)
    assert failed(chain.ask([chain.stages[0]], (64, 70))), "there is no block to compare"
    chain.ask([chain.stages[0]], (16, 32))
    chain.stages[1].span(16, _states(chain, 16, 32), 16)
    event = chain.ask(chain.stages, (48, 70))
    assert event.token == checkpoint("Llama").greedy(IDS, 1)[0]
    for stage in chain.stages:
        assert stage.rows == [(0, 16), (16, 32), (48, 70)]
        stage.worker.request("close", stage.name, payload=NAMES)
        assert cached(stage.worker, exact=True) == (FULL if form == "exact" else 32)
        assert cached(stage.worker, exact=False) == FULL


def _states(chain: Chain, start: int, stop: int) -> bytes:
    """Return what the first stage passes on of some positions."""
    stage = chain.sources[0]
    event = stage.span(start, IDS[start:stop], stop - start, epoch=1)
    return bytes(event.data)


def test_wrong_values_of_a_stranger_are_found(
    chain: Chain, checkpoint: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event_of(chain: Chain) -> Any:
        chain.ask(chain.stages, (0, 16))
        for layer in range(2):
            part = bytearray(read(chain.sources[0].worker, 16, 64, layer, layer + 1)[-1])
            wrong(part)
            chain.stages[0].bring(part, (16, 64), doubted=True)
        chain.stages[1].bring_all(chain.sources[1], (16, 64))
        return chain.ask(chain.stages, (48, 70))

    assert failed(event_of(chain), "bad-chunk")
    stage = chain.stages[0]
    stage.worker.request("close", stage.name, payload=NAMES)
    assert cached(stage.worker) == 16, "what it has computed itself"

    # Twin: without the comparison they would be believed.
    monkeypatch.setattr(arrival, "KV_WRONG", 1e9)
    assert isinstance(event_of(Chain(checkpoint, driver)), TokenEvent)


def submit(stage: ChainStage, *runs: Run, behind: int | None = None) -> None:
    for start, stop in runs:
        span = Span(stage.name, 0, start, stop - start, tokens=IDS[start:stop], behind=behind)
        stage.worker.submit(span)


def said(stage: ChainStage) -> list[tuple[str, int]]:
    """Return what the engine has answered, in order, and from which position on."""
    events = stage.worker.events()
    kinds = {HiddenEvent: "hidden", DroppedEvent: "dropped"}
    return [(kinds[type(each)], each.start) for each in events]


def test_spans_that_wait_for_what_all_stages_have_are_dropped(chain: Chain) -> None:
    """A later stage gets none of them, so it must have their positions: the gateway says so."""
    first, source = chain.stages[0], chain.sources[0]
    first.bring_all(source, (16, 64))
    submit(first, (0, 16), (16, 32), (32, 48))
    submit(first, (64, 70), behind=32)
    assert said(first) == [("hidden", 0), ("hidden", 16), ("dropped", 32), ("hidden", 64)]
    assert first.rows == [(0, 16), (16, 32), (64, 70)]


def test_a_span_in_progress_is_dropped_between_two_steps(chain: Chain) -> None:
    first, source = chain.stages[0], chain.sources[0]
    first.bring_all(source, (16, 64))
    submit(first, (0, 16))
    first.worker.step()
    submit(first, (16, 48), (48, 64))
    submit(first, (64, 70), behind=16)
    assert said(first) == [("hidden", 0), ("dropped", 16), ("dropped", 48), ("hidden", 64)]
    assert first.rows == [(0, 16), (64, 70)]


def test_a_block_that_is_half_computed_is_finished(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has written to the rest of it. That is so where the block has arrived, and where it is
    one that the session had cached."""
    right = _states(chain, 64, 70)
    first, source = chain.stages[0], chain.sources[0]
    first.bring_all(source, (16, 64))
    assert source.open(b"again") == FULL
    for stage in (first, source):
        submit(stage, (0, 32))
        with monkeypatch.context() as patched:
            plan = [(stage.session.share, 24)]
            patched.setattr(stage.worker.core.runner.scheduler, "plan", lambda plan=plan: plan)
            stage.worker.step()
        submit(stage, (64, 70), behind=0)
        *_, hidden = stage.worker.events()
        assert isinstance(hidden, HiddenEvent) and bytes(hidden.data) == right
        assert stage.rows == [(0, 24), (24, 32), (64, 70)]


def test_nothing_is_left_out_after_positions_were_dropped_by_a_failure(chain: Chain) -> None:
    """Their blocks are gone, and others may have them."""
    stage, last = chain.sources[1], _states(chain, 64, 70)
    states = _states(chain, 0, 16)
    assert stage.open(b"again") == FULL
    stage.span(0, states, 16)
    assert failed(stage.span(0, b"\xff" * (len(states) // 16 * 15), 15), "not-finite")
    assert failed(stage.span(64, last, 6))


def test_dropping_what_is_not_here_ends_the_session_only(chain: Chain) -> None:
    first = chain.stages[0]
    submit(first, (0, 16), (16, 32))
    submit(first, (64, 70), behind=0)
    events = first.worker.events()
    assert [type(each) for each in events[:-1]] == [DroppedEvent] * 2 and failed(events[-1])
    assert first.rows == []


def test_a_table_that_steps_back_takes_the_names_of_what_it_writes() -> None:
    """Others would find blocks in the middle of being written."""
    pool = BlockPool(16)
    names = [("gateway", bytes([each])) for each in range(4)]
    other = BlockTable(pool, 64, names)
    other.prepare(0, 64)
    other.fill(64)
    other.free()
    table = BlockTable(pool, 64, names)
    table.step_back(0)
    assert not table.prepare(0, 24)
    assert [pool.look(name) is not None for name in names] == [False, False, True, True]
    table.fill(32)
    assert all(pool.look(name) is not None for name in names)


def test_a_table_that_steps_back_writes_to_blocks_of_its_own() -> None:
    pool = BlockPool(16)
    names = [("gateway", bytes([each])) for each in range(4)]
    other = BlockTable(pool, 64, names)
    other.prepare(0, 64)
    other.fill(64)
    table = BlockTable(pool, 64, names)
    assert table.length == 64
    table.step_back(0)
    copies = table.prepare(0, 24)
    assert [copy.source for copy in copies] == list(other.blocks[:2])
    assert not set(table.blocks[:2]) & set(other.blocks)
    assert list(table.blocks[2:]) == list(other.blocks[2:])
    table.fill(24)
    assert not table.prepare(24, 32)
    slots = [table.slot(position) for position in range(64)]
    assert [slot for first, last in table.spans(0, 64) for slot in range(first, last)] == slots
    table.free()
    other.free()
    assert pool.free + pool.cached == pool.total and not pool.promised
