"""Parts of KV that arrive ahead of a session while it computes: used when it reaches them."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.tasks.engine.compute.device import ComputeDevice
from shoal.tasks.engine.interface import FailedEvent, HiddenEvent, Span, TokenEvent
from shoal.tasks.engine.kv import ahead, arrival
from shoal.tasks.engine.kv.blocks import BLOCK, BlockPool, BlockTable

from .test_arrival import FULL, IDS, LAYERS, NAMES, cached, opened, read, write, wrong

Run = tuple[int, int]


@pytest.fixture
def computed(checkpoint: Any, driver: Any) -> Any:
    """A worker that has computed the text, whose blocks are cached."""
    worker = driver(checkpoint("Llama").shard())
    worker.run(Span(opened(worker, b"source"), 0, 0, len(IDS), tokens=IDS, want="token"))
    return worker


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of one block while parts are expected."""
    monkeypatch.setattr(ahead, "AHEAD_PART", 0.0)
    monkeypatch.setattr(ahead, "AHEAD_STEPS", 0.0)


class Computing:
    """A session that computes the text in a worker, and what it computed of it."""

    def __init__(self, checkpoint: Any, driver: Any, *, exact: bool = True) -> None:
        self.worker = driver(checkpoint("Llama").shard())
        self.name = opened(self.worker, b"target", exact=exact)
        self.rows: list[Run] = []
        compute = self.worker.shard.compute
        forward = compute.forward

        def note(pieces: Any, stop: Any = None) -> Any:
            for piece in pieces:
                self.rows.append((piece.position, piece.position + piece.count))
            return forward(pieces, stop)

        compute.forward = note
        self.expect(True)

    @property
    def session(self) -> Any:
        return self.worker.core.sessions[self.name]

    @property
    def length(self) -> int:
        return int(self.session.table.length)

    def expect(self, expected: bool) -> None:
        with torch.inference_mode():
            self.worker.core.handle(("expect", self.name, expected), memoryview(b""))

    def begin(self) -> None:
        self.worker.submit(Span(self.name, 0, 0, len(IDS), tokens=IDS, want="token"))

    def bring(self, part: Any, run: Run, *, doubted: bool = False) -> Any:
        return self.worker.request("bring", self.name, doubted, *run, payload=bytes(part))[:2]

    def bring_all(self, source: Any, run: Run, *, form: str = "exact", **how: Any) -> None:
        """Bring a run, the last layer first, in two pieces each."""
        for layer in reversed(range(LAYERS)):
            for start in (run[1] - BLOCK, run[0]):
                stop = run[1] if start > run[0] else max(run[1] - BLOCK, run[0] + BLOCK)
                part = read(source, start, stop, layer, layer + 1, form=form)[-1]
                assert self.bring(part, run, **how)[0] == "ok"
                if run[1] - run[0] == BLOCK:
                    break

    def token(self) -> int:
        (event,) = self.worker.events()
        assert isinstance(event, TokenEvent), event
        return event.token


@pytest.fixture
def target(checkpoint: Any, driver: Any) -> Computing:
    return Computing(checkpoint, driver)


def test_the_session_goes_on_behind_what_arrived_ahead_of_it(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    target.begin()
    target.worker.step()
    target.bring_all(computed, (48, 64))
    target.bring_all(computed, (32, 48))
    assert target.length == 16, "it has not reached them"
    assert target.token() == checkpoint("Llama").greedy(IDS, 1)[0]
    assert target.rows == [(0, 16), (16, 32), (64, 70)]
    target.worker.request("close", target.name, payload=NAMES)
    assert cached(target.worker) == FULL


def test_a_run_that_arrives_where_the_session_is_is_used_between_two_steps(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    target.begin()
    target.worker.step()
    target.bring_all(computed, (16, 64))
    assert target.length == 64
    assert target.token() == checkpoint("Llama").greedy(IDS, 1)[0]
    assert target.rows == [(0, 16), (64, 70)]


def test_what_arrives_before_the_first_span_is_not_computed(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    """The gateway knows nothing of it, and sends all spans."""
    target.bring_all(computed, (0, 64))
    assert target.length == 64
    for start in range(0, 64, 16):
        target.worker.submit(Span(target.name, 0, start, 16, tokens=IDS[start : start + 16]))
    target.worker.submit(Span(target.name, 0, 64, 6, tokens=IDS[64:], want="token"))
    *spans, last = target.worker.events()
    assert [(each.start, each.count) for each in spans if isinstance(each, HiddenEvent)] == [
        (0, 16), (16, 16), (32, 16), (48, 16)
    ]  # fmt: skip
    assert last.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert target.rows == [(64, 70)]


def test_the_last_position_is_computed_for_its_token(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    ids = IDS[:64]
    target.bring_all(computed, (0, 64))
    target.worker.submit(Span(target.name, 0, 0, 64, tokens=ids, want="token"))
    assert target.token() == checkpoint("Llama").greedy(ids, 1)[0]
    assert target.rows == [(63, 64)]


def test_a_span_is_answered_that_ends_within_what_arrives_between_two_steps(
    target: Computing, computed: Any
) -> None:
    target.worker.submit(Span(target.name, 0, 0, 48, tokens=IDS[:48]))
    target.worker.step()
    target.bring_all(computed, (16, 64))
    (event,) = target.worker.events()
    assert (event.start, event.count) == (0, 48) and target.rows == [(0, 16)]
    assert target.session.current is None and not target.worker.core.busy


def test_what_the_session_has_passed_and_what_is_not_complete_is_not_used(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    target.begin()
    target.worker.step()
    other = read(computed, 32, 48, 0, LAYERS)[-1]
    passed = bytearray(read(computed, 0, 16, 0, LAYERS)[-1])
    wrong(passed)
    before = bytes(read(target.worker, 0, 16, 0, LAYERS, session=target.name)[-1])
    assert target.bring(passed, (0, 16)) == ("ok", 16)
    assert bytes(read(target.worker, 0, 16, 0, LAYERS, session=target.name)[-1]) == before
    half = read(computed, 32, 48, 0, LAYERS // 2)[-1]
    assert target.bring(half, (32, 48)) == target.bring(half, (32, 48)) == ("ok", 16), "it is half"
    assert target.token() == checkpoint("Llama").greedy(IDS, 1)[0]
    assert target.rows == [(at, min(at + 16, 70)) for at in range(0, 70, 16)]
    assert target.bring(other, (32, 48)) == ("ok", 70), "it was passed"
    assert cached(target.worker) == FULL


def test_blocks_of_a_fetch_that_ends_are_free_again(target: Computing, computed: Any) -> None:
    pool = target.worker.shard.pool
    target.worker.submit(Span(target.name, 0, 0, 32, tokens=IDS[:32]))
    target.worker.step()
    part = read(computed, 48, 64, 0, 1)[-1]
    target.bring(part, (48, 64))
    assert pool.used == 4, "all before it have a block"
    target.expect(False)
    assert target.session.ahead is None
    assert target.bring(part, (48, 64)) == ("refused", "gap"), "nothing more is taken"
    target.worker.step()
    assert pool.used * BLOCK == target.length == 32
    target.worker.request("close", target.name)
    assert pool.free + pool.cached == pool.total and not pool.promised


def test_complete_runs_of_a_fetch_that_ends_are_used(target: Computing, computed: Any) -> None:
    target.begin()
    target.bring_all(computed, (48, 64))
    target.bring(read(computed, 32, 48, 0, 1)[-1], (32, 48))
    target.expect(False)
    target.token()
    assert target.rows == [(0, 48), (64, 70)]


def test_a_session_that_begins_another_text_uses_nothing(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    """Its names stand for the prompt that it was opened with."""
    target.begin()
    for _ in range(2):
        target.worker.step()
    target.bring_all(computed, (48, 64))
    ids = (*IDS[:16], *IDS[:32], *IDS[:22])
    target.worker.frames.clear()
    (event,) = [
        each
        for each in target.worker.run(Span(target.name, 1, 0, 70, tokens=ids, want="token"))
        if isinstance(each, TokenEvent)
    ]
    assert event.token == checkpoint("Llama").greedy(ids, 1)[0]
    assert target.rows[-1][1] == 70 and (48, 64) not in target.rows
    assert sum(stop - start for start, stop in target.rows[2:]) == 70


def _rows(target: Computing, before: int = 0) -> int:
    """Return how many rows the session has computed since it had computed `before` pieces."""
    return sum(stop - start for start, stop in target.rows[before:])


OTHER = (*IDS[:16], *IDS[:32], *IDS[:22])
"""Another text, which has the same first block."""


def test_a_later_span_in_place_of_what_arrived_is_computed(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    target.begin()
    target.bring_all(computed, (0, 64))
    target.token()
    before = len(target.rows)
    target.worker.frames.clear()
    target.worker.submit(Span(target.name, 1, 16, 54, tokens=OTHER[16:], want="token"))
    assert target.token() == checkpoint("Llama").greedy(OTHER, 1)[0]
    assert _rows(target, before) == 54


def test_what_arrived_is_not_used_again_once_its_positions_were_dropped(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    target.worker.run(Span(target.name, 0, 0, 16, tokens=IDS[:16]))
    target.bring_all(computed, (16, 64))
    assert target.length == 64, "and no span has used it"
    target.worker.run(Span(target.name, 1, 8, 62, tokens=OTHER[8:]))
    before = len(target.rows)
    target.worker.frames.clear()
    text = (*OTHER[:16], *OTHER[:54])
    target.worker.submit(Span(target.name, 2, 16, 54, tokens=text[16:], want="token"))
    assert target.token() == checkpoint("Llama").greedy(text, 1)[0]
    assert _rows(target, before) == 54


def test_parts_that_arrive_after_another_text_began_are_refused(
    target: Computing, computed: Any
) -> None:
    """Nothing had arrived before."""
    target.begin()
    for _ in range(2):
        target.worker.step()
    target.worker.submit(Span(target.name, 1, 0, 70, tokens=OTHER, want="token"))
    target.worker.step()
    part = read(computed, 48, 64, 0, LAYERS)[-1]
    assert target.bring(part, (48, 64)) == ("refused", "gap")
    target.expect(True)
    assert target.bring(part, (48, 64)) == ("refused", "gap"), "of another provider"
    target.worker.events()
    assert _rows(target, 2) == 70


@pytest.mark.parametrize("ended", [True, False])
def test_no_position_is_left_out_that_has_no_kv(
    ended: bool, target: Computing, computed: Any
) -> None:
    """Its place may hold KV of another gateway. A session that has computed nothing may compute
    positions again that it found."""
    target.bring_all(computed, (0, 64))
    if ended:
        target.expect(False)
    target.worker.run(Span(target.name, 0, 20, 1, tokens=IDS[20:21]))
    assert target.length == 21
    target.worker.frames.clear()
    target.worker.submit(Span(target.name, 0, 21, 43, tokens=IDS[21:64], want="token"))
    target.token()
    assert _rows(target) == 44


def test_parts_of_both_kinds_leave_no_position_out(target: Computing, computed: Any) -> None:
    """A standby is copied to by `write`, which sets back how far it is."""
    first = [read(computed, 0, 16, layer, layer + 1)[-1] for layer in range(LAYERS)]
    assert write(target.worker, target.name, first[0]) == ("ok", 0)
    target.bring_all(computed, (0, 64))
    for part in first[1:]:
        write(target.worker, target.name, part)
    length = target.length
    target.worker.submit(Span(target.name, 0, length, 56 - length, tokens=IDS[length:56]))
    target.worker.events()
    assert length + _rows(target) == target.length == 56


def test_blocks_of_others_are_not_written_to(
    target: Computing, computed: Any, checkpoint: Any
) -> None:
    """A session that computes again what it has found does so in blocks of its own."""
    worker = target.worker
    worker.run(Span(target.name, 0, 0, 33, tokens=IDS[:33], want="token"))
    second = opened(worker, b"second")
    assert worker.core.sessions[second].table.length == 32
    worker.core.handle(("expect", second, True), memoryview(b""))
    part = read(computed, 48, 64, 0, 1)[-1]
    worker.request("bring", second, False, 48, 64, payload=bytes(part))
    before = bytes(read(worker, 0, 32, 0, LAYERS, session=target.name)[-1])
    worker.run(Span(second, 0, 0, 32, tokens=IDS[32:64]))
    assert bytes(read(worker, 0, 32, 0, LAYERS, session=target.name)[-1]) == before


@pytest.mark.parametrize("form", ["exact", "int8"])
def test_doubted_runs_are_believed_if_their_last_block_is_right(
    form: str, computed: Any, checkpoint: Any, driver: Any
) -> None:
    target = Computing(checkpoint, driver, exact=form == "exact")
    target.begin()
    target.worker.step()
    target.bring_all(computed, (16, 64), form=form, doubted=True)
    assert target.length == 48
    assert cached(target.worker, exact=False) == 16, "nothing else is believed yet"
    assert target.token() == checkpoint("Llama").greedy(IDS, 1)[0]
    assert target.rows[0] == (0, 16) and target.rows[1][0] == 48
    assert cached(target.worker, exact=True) == (FULL if form == "exact" else 16)
    assert cached(target.worker, exact=False) == FULL


def test_doubted_runs_that_are_wrong_are_not_used(
    target: Computing, computed: Any, checkpoint: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event_of(target: Computing) -> Any:
        target.begin()
        target.worker.step()
        for layer in range(LAYERS):
            part = bytearray(read(computed, 16, 64, layer, layer + 1)[-1])
            wrong(part)
            target.bring(part, (16, 64), doubted=True)
        (event,) = target.worker.events()
        return event

    event = event_of(target)
    assert isinstance(event, FailedEvent) and event.code == "bad-chunk"
    target.worker.request("close", target.name, payload=NAMES)
    assert cached(target.worker) == 0
    pool = target.worker.shard.pool
    assert pool.free + pool.cached + pool.used == pool.total

    # Twin: without the comparison they would be believed.
    monkeypatch.setattr(arrival, "KV_WRONG", 1e9)
    assert isinstance(event_of(Computing(checkpoint, driver)), TokenEvent)


def test_parts_that_do_not_fit_are_refused(
    target: Computing, computed: Any, checkpoint: Any, driver: Any
) -> None:
    part = read(computed, 32, 48, 0, LAYERS)[-1]
    assert target.bring(part, (32, 40)) == ("refused", "bad-state")
    assert target.bring(part, (0, 32)) == ("refused", "bad-state")
    assert target.bring(part, (32, 96)) == ("refused", "bad-state"), "90 positions"
    assert target.bring(bytes(part)[:-1], (32, 48)) == ("refused", "bad-state")
    assert target.bring(part, (-1, 48)) == ("refused", "bad-state")
    assert target.length == 0 and not target.session.table.blocks


def test_rows_on_a_card_have_all_blocks_that_are_held_for_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that continues a text passes from one held block to the next, and no block is added
    then. In its place was one of another session."""
    launch = SimpleNamespace(CHUNK=64, power_of_two=lambda count: count)  # it needs a card's tools
    monkeypatch.setitem(sys.modules, "shoal.tasks.engine.compute.gpu.launch", launch)
    name = "shoal.tasks.engine.compute.gpu.steprows"
    monkeypatch.delitem(sys.modules, name, raising=False)
    rows = importlib.import_module(name)
    del sys.modules[name]  # others get the real one
    pool = BlockPool(16)
    seats = rows.Seats(1, 1, ComputeDevice())
    other = BlockTable(pool, 64)
    other.prepare(0, 64)
    seats.take([(other, 63)], [1])
    table = BlockTable(pool, 64)
    table.hold(64)
    for position in range(40):
        table.prepare(position, position + 1)
        seats.take([(table, position)], [1])
        used = position // BLOCK + 1
        assert seats.rows.tables[0, :used].tolist() == list(table.blocks[:used]), position
        table.fill(position + 1)
