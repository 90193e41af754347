"""Spans and sessions in the worker: order, repeats, epochs, truncation, turns, every refusal."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.defaults import HOLD_S
from shoal.tasks.engine.interface import (
    FailedEvent,
    HiddenEvent,
    Parts,
    Sampling,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.messages import load_payload
from shoal.tasks.engine.sampling import choose
from shoal.tasks.engine.scheduling.costs import NO_PICK_COSTS, PickCosts, StepCosts
from shoal.tasks.engine.wire import WireError

TOKENS = (5, 17, 3, 88, 41, 2, 9, 77)


@pytest.fixture
def whole(checkpoint: Any, driver: Any) -> Any:
    return driver(checkpoint("Llama").shard())


def prompt(session: bytes, **fields: Any) -> Span:
    span = Span(session, 0, 0, len(TOKENS), tokens=TOKENS, want="token")
    return replace(span, **fields)


def code(worker: Any, span: Span) -> str:
    (event,) = worker.run(span)
    assert isinstance(event, FailedEvent), event
    assert (event.session, event.epoch) == (span.session, span.epoch)
    return event.code


# Token loops.


def test_a_loop_ends_at_a_stop_id_and_says_so(whole: Any, checkpoint: Any) -> None:
    text = checkpoint("Llama").greedy(TOKENS, 20)
    stop = next(text[at] for at in range(3, 20) if text[at] not in text[:at])
    events = whole.run(prompt(whole.open(b"s"), steps=20, stop_ids=(100_000, stop)))
    assert [event.token for event in events] == text[: text.index(stop) + 1]
    assert [event.final for event in events] == [False] * (len(events) - 1) + [True]
    assert [event.position for event in events] == list(range(8, 8 + len(events)))


def test_sampled_loop_equals_choosing_from_the_logits(whole: Any, checkpoint: Any) -> None:
    sampling = Sampling(1.5, 30, 0.9, seed=1234567)
    events = whole.run(prompt(whole.open(b"s"), steps=12, sampling=sampling))
    text = list(TOKENS)
    for event in events:
        logits = checkpoint("Llama").logits(text)[-1].numpy()
        token, logprob = choose(logits, sampling, len(text))
        assert (event.position, event.token) == (len(text), token)
        assert math.isclose(event.logprob, logprob, abs_tol=1e-4)
        text.append(token)
    assert len({event.token for event in events}) > 3


def test_sessions_take_turns_and_do_not_mix(whole: Any, checkpoint: Any) -> None:
    made = checkpoint("Llama")
    names = [whole.open(name) for name in (b"a", b"b", b"c")]
    prompts = [TOKENS, TOKENS[::-1], TOKENS[2:5]]
    for name, tokens in zip(names, prompts, strict=True):
        whole.submit(Span(name, 0, 0, len(tokens), tokens=tokens, want="token", steps=10))
    events = whole.events()
    assert [event.session for event in events] == names * 10  # all in each step
    assert whole.steps == 10
    for name, tokens in zip(names, prompts, strict=True):
        got = [event.token for event in events if event.session == name]
        assert got == made.greedy(tokens, 10)


def test_the_first_token_of_a_loop_does_not_wait_for_the_step(whole: Any) -> None:
    session = whole.open(b"s")
    before = 2  # frames: the load's reply and the open's
    assert len(whole.run(prompt(session, steps=5))) == 5
    assert whole.soon == [before + 1, before + 2, before + 3, before + 4]
    whole.soon.clear()
    for name in (b"a", b"b"):
        whole.submit(prompt(whole.open(name), steps=4))
    assert len(whole.events()) == 8
    first = before + 5 + 2  # the load, two opens more, and the five tokens
    assert whole.soon == [first + at for at in (2, 3, 4, 5, 6, 7)]


def test_the_scheduler_knows_whether_a_span_waits_behind_another(whole: Any) -> None:
    session, wanted = whole.open(b"s"), []
    other = prompt(session, epoch=1, count=4, tokens=TOKENS[:4])
    for span in (prompt(session), prompt(session, epoch=1), other):
        whole.submit(span)
        wanted.append(whole.core.runner.find(session).share.more)
    assert wanted == [False, False, True], "the second one replaces the first"
    whole.step()
    assert not whole.core.runner.find(session).share.more


def test_waiting_tokens_are_settled_after_each_step(whole: Any) -> None:
    settled: list[tuple[int, bool]] = []
    whole.core.runner.answers._settle = lambda urgent: settled.append((len(whole.frames), urgent))
    whole.run(prompt(whole.open(b"s"), steps=5))
    assert settled == [(1, False), (2, False), (3, False), (4, False), (5, True)]


def test_the_hidden_states_of_a_step_leave_together_at_its_end(
    checkpoint: Any, driver: Any
) -> None:
    """So the next stage computes them in one step too, and the daemon is woken up once."""
    stage = driver(checkpoint("Llama").shard(checkpoint("Llama").splits(2)[0]))
    names = [stage.open(name) for name in (b"a", b"b", b"c")]
    settled: list[tuple[int, bool]] = []
    stage.core.runner.answers._settle = lambda urgent: settled.append((len(stage.frames), urgent))
    stage.soon.clear()
    for name in names:
        stage.submit(Span(name, 0, 0, 2, tokens=(1, 2)))
    assert len(stage.events()) == 3
    assert len(stage.soon) == 3
    assert settled == [(3, True)]


def test_a_long_prompt_shares_its_steps_with_running_texts(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama", max_position_embeddings=1024)
    worker = driver(made.shard())
    # A step with one row takes 0.05 s, and with a prompt of the same gateway 0.7 times as long
    # again: 35 rows of it.
    worker.shard.costs = StepCosts(0.049, 0.001, 0.0)
    long = tuple(index % 101 for index in range(700))
    first, second = worker.open(b"long", 1024), worker.open(b"short", 64)
    worker.submit(prompt(second, steps=30))
    worker.step()
    worker.submit(Span(first, 0, 0, 700, tokens=long, want="token"))
    worker.steps = 0
    events = worker.events()
    assert [event.token for event in events if event.session == first] == made.greedy(long, 1)
    assert [event.token for event in events if event.session == second] == made.greedy(TOKENS, 30)
    at = [event.session for event in events].index(first)
    assert at == math.ceil(700 / 32) + 1  # one token in each step; parts end with a block
    assert worker.steps == 29


def test_chunked_prefill_answers_once_with_everything(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama", max_position_embeddings=1024)
    worker = driver(made.shard())
    long = tuple(index % 101 for index in range(600))
    span = Span(worker.open(b"s", 600), 0, 0, 600, tokens=long, want="logits")
    logits = torch.frombuffer(bytearray(worker.hidden(span)), dtype=torch.float32).view(600, -1)
    assert float((logits - made.logits(long)).abs().max()) < 1e-4


# Repeats, truncation, epochs.


def test_a_repeated_span_is_answered_and_computes_nothing(whole: Any) -> None:
    session = whole.open(b"s")
    first = whole.run(prompt(session, steps=6))
    steps = whole.steps
    again = whole.run(prompt(session, steps=6))
    assert again == first
    assert whole.steps == steps
    assert whole.core.runner.find(session).table.length == 8 + 5  # not truncated


def test_repeats_of_the_last_spans_are_kept_within_bounds(whole: Any) -> None:
    session = whole.open(b"s")
    spans = [Span(session, 0, at, 1, tokens=(at,)) for at in range(20)]
    answers = [whole.hidden(span) for span in spans]
    assert whole.hidden(spans[-1]) == answers[-1]
    assert whole.hidden(spans[-8]) == answers[-8]
    assert whole.core.runner.find(session).table.length == 20
    assert whole.hidden(spans[3]) == answers[3]  # no longer kept: computed again
    assert whole.core.runner.find(session).table.length == 4


def test_only_the_last_large_answer_is_kept(whole: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.tasks.engine.session.KEPT_BYTES", 3000)
    session = whole.open(b"s")
    for at in range(4):
        whole.hidden(Span(session, 0, at * 8, 8, tokens=TOKENS, want="logits"))
    kept = whole.core.runner.find(session).kept
    assert [at for at in range(4) if kept((0, at * 8, 8)) is not None] == [3]


def test_a_lower_start_truncates(whole: Any, checkpoint: Any) -> None:
    made = checkpoint("Llama")
    session = whole.open(b"s")
    whole.run(prompt(session, steps=9))
    span = Span(session, 0, 4, 3, tokens=(1, 2, 3), want="token", steps=5)
    assert whole.tokens(span) == made.greedy((*TOKENS[:4], 1, 2, 3), 5)


def test_a_new_epoch_forgets_answers_and_an_old_one_is_refused(whole: Any, checkpoint: Any) -> None:
    session = whole.open(b"s")
    whole.run(prompt(session))
    other = TOKENS[::-1]
    renewed = whole.tokens(prompt(session, epoch=2, tokens=other))
    assert renewed == checkpoint("Llama").greedy(other, 1)
    kept = whole.core.runner.find(session).kept
    assert [epoch for epoch in range(4) if kept((epoch, 0, 8)) is not None] == [2]
    assert code(whole, prompt(session, epoch=1)) == "old-epoch"
    assert whole.core.runner.find(session).table.length == 8


def test_a_new_epoch_ends_the_work_of_the_old(whole: Any) -> None:
    session = whole.open(b"s")
    whole.submit(prompt(session, steps=50))
    whole.submit(Span(session, 0, 58, 1, tokens=(1,)))
    whole.step()
    whole.submit(prompt(session, epoch=1, steps=2))
    events = whole.events()
    assert [type(event) for event in events] == [TokenEvent, FailedEvent, TokenEvent, TokenEvent]
    assert (events[1].code, events[1].epoch) == ("old-epoch", 0)


def test_spans_run_in_the_order_submitted(whole: Any, checkpoint: Any) -> None:
    session = whole.open(b"s")
    for at, token in enumerate(TOKENS):
        whole.submit(Span(session, 0, at, 1, tokens=(token,), want="token"))
    events = whole.events()
    assert [event.position for event in events] == list(range(1, 9))
    assert events[-1].token == checkpoint("Llama").greedy(TOKENS, 1)[0]


# Cancel and close.


def test_cancel_ends_a_loop_after_its_step(whole: Any) -> None:
    session = whole.open(b"s")
    whole.submit(prompt(session, steps=50))
    whole.submit(Span(session, 0, 2, 1, tokens=(1,)))
    whole.step()
    whole.step()
    whole.core.handle(("cancel", session), memoryview(b""))
    events = whole.events()
    assert [type(event) for event in events] == [TokenEvent, TokenEvent, FailedEvent]
    assert events[-1].code == "cancelled"
    whole.core.handle(("cancel", session), memoryview(b""))
    assert whole.events() == []
    assert len(whole.tokens(prompt(session, steps=3))) == 3  # a cut answer is not repeated


def test_close_frees_the_memory_and_silences_the_session(whole: Any) -> None:
    session = whole.open(b"s")
    whole.submit(prompt(session, steps=50))
    whole.step()
    whole.frames.clear()
    assert whole.request("close", session)[0] == "ok"
    assert whole.events() == []
    assert whole.request("usage")[1]["kv_bytes_reserved"] == 0
    assert whole.request("close", session)[0] == "ok"


# Refusals.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tokens": (101, *TOKENS[1:])}, "bad-token"),
        ({"tokens": (-1, *TOKENS[1:])}, "bad-token"),
        ({"tokens": TOKENS[1:]}, "bad-span"),
        ({"count": 0, "tokens": ()}, "bad-span"),
        ({"start": -1}, "bad-span"),
        ({"epoch": -1}, "bad-span"),
        ({"start": 1}, "gap"),
        ({"steps": 58}, "too-long"),
        ({"start": 57}, "too-long"),
        ({"steps": 0}, "bad-span"),
        ({"want": "hidden", "steps": 2}, "bad-span"),
        ({"want": "tokens"}, "bad-span"),
        ({"top": 21}, "bad-span"),
        ({"top": -1}, "bad-span"),
        ({"kind": "backward"}, "unsupported"),
        ({"stop_ids": (-1,)}, "bad-span"),
        ({"stop_ids": ("a",)}, "bad-span"),
        ({"sampling": Sampling(-1.0)}, "bad-span"),
        ({"sampling": Sampling(math.nan)}, "bad-span"),
        ({"sampling": Sampling(1.0, -1)}, "bad-span"),
        ({"sampling": Sampling(1.0, 0, 0.0)}, "bad-span"),
        ({"sampling": Sampling(1.0, 0, 1.5)}, "bad-span"),
        ({"sampling": Sampling(1.0, 0, 1.0, -1)}, "bad-span"),
        ({"tokens": None, "hidden": b"\0" * 31}, "bad-hidden"),
        ({"tokens": None, "hidden": np.full(256, np.nan, np.float32).data.cast("B")}, "not-finite"),
    ],
)
def test_bad_spans_get_their_code(whole: Any, change: dict[str, Any], expected: str) -> None:
    session = whole.open(b"s")
    assert code(whole, replace(prompt(session), **change)) == expected
    assert len(whole.tokens(prompt(session, epoch=1, steps=2))) == 2  # and harm nothing


def test_a_span_of_an_unknown_session_gets_its_code(whole: Any) -> None:
    assert code(whole, prompt(b"?" * 16)) == "unknown-session"


@pytest.mark.parametrize(
    ("parts", "span", "expected"),
    [
        (Parts(False, 0, 2, False), {"want": "hidden"}, "no-embedding"),
        (Parts(True, 0, 2, False), {}, "no-head"),
        (Parts(True, 0, 2, False), {"want": "logits"}, "no-head"),
        (Parts(True, 0, 2, False), {"want": "pooled"}, "no-head"),
        (Parts(False, 2, 4, True), {"tokens": None, "hidden": bytes(1024), "steps": 2}, "bad-span"),
    ],
)
def test_a_shard_refuses_what_it_has_no_parts_for(
    parts: Parts, span: dict[str, Any], expected: str, checkpoint: Any, driver: Any
) -> None:
    worker = driver(checkpoint("Llama").shard(parts))
    assert code(worker, replace(prompt(worker.open(b"s")), **span)) == expected


def test_too_many_waiting_and_too_large_answers_are_refused(whole: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("shoal.tasks.engine.spans.checks.WAITING_SPANS", 2)
    session = whole.open(b"s")
    for _ in range(4):  # the first one begins at once
        whole.submit(prompt(session))
    assert [getattr(event, "code", "") for event in whole.events()] == ["too-many", "", "", ""]
    monkeypatch.setattr("shoal.tasks.engine.spans.checks.ANSWER_BYTES", 100)
    assert code(whole, prompt(session, epoch=1, want="hidden")) == "too-large"


def test_hidden_states_are_checked_before_use(
    checkpoint: Any, driver: Any, monkeypatch: Any
) -> None:
    worker = driver(checkpoint("Llama").shard(Parts(False, 1, 2, False)))
    monkeypatch.setattr(TorchCompute, "forward", None)
    values = np.zeros((2, 32), dtype=np.float32)
    values[1, 5] = -math.inf
    span = Span(worker.open(b"s"), 0, 0, 2, hidden=values.data.cast("B"))
    assert code(worker, span) == "not-finite"


def test_a_value_that_overflows_is_not_passed_on(
    checkpoint: Any, driver: Any, monkeypatch: Any
) -> None:
    worker = driver(checkpoint("Llama").shard(Parts(False, 1, 2, False)))
    span = Span(worker.open(b"s"), 0, 0, 2, hidden=bytes(256))
    assert len(worker.hidden(span)) == 256
    monkeypatch.setattr(
        TorchCompute, "forward", lambda model, pieces, stop: [torch.full((2, 32), math.inf)]
    )
    assert code(worker, replace(span, epoch=1)) == "not-finite"


def test_pooled_states_that_overflow_are_not_passed_on(whole: Any, monkeypatch: Any) -> None:
    span = prompt(whole.open(b"s"), want="pooled")
    assert len(whole.hidden(span)) == 4 * 32
    monkeypatch.setattr(
        TorchCompute, "forward", lambda model, pieces, stop: [torch.full((8, 32), math.nan)]
    )
    assert code(whole, replace(span, epoch=1)) == "not-finite"


def test_open_is_bounded_by_the_budget_and_the_context(whole: Any) -> None:
    limit = whole.request("usage")[1]["kv_bytes_limit"]
    names = (b"x%015d" % index for index in range(10_000))
    reply: tuple[Any, ...] = ("ok",)

    def open_one(name: bytes, tokens: int) -> tuple[Any, ...]:
        found: tuple[Any, ...] = whole.request(
            "open", name, tokens, "gateway", False, b"", 0, None, ""
        )
        return found

    while reply[0] == "ok":
        reply = open_one(next(names), 96)
    assert reply[:2] == ("refused", "no-memory")
    assert 0.99 * limit < whole.request("usage")[1]["kv_bytes_reserved"] <= limit
    assert open_one(b"y" * 16, 97)[:2] == ("refused", "too-long")
    assert open_one(b"y" * 16, 0)[:2] == ("refused", "too-long")
    assert open_one(b"short", 1)[:2] == ("refused", "bad-span")
    assert open_one(b"x%015d" % 0, 1)[:2] == ("refused", "session-exists")


def test_a_frame_that_is_no_request_ends_the_worker(whole: Any) -> None:
    for header in (("nonsense",), ("load",), (7,)):
        with pytest.raises(WireError):
            whole.core.handle(header, memoryview(b""))


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ((7, False, b"", 0, None, ""), b""),
        (("g", 1, b"", 0, None, ""), b""),
        (("g", None, b"", 0, None, ""), b""),
        (("g", False, "me", 0, None, ""), b""),
        (("g", False, bytes(17), 0, None, ""), b""),
        (("g", False, b"", 0, None, 7), b""),
        (("g", False, b"", 0, None, "", 1), b""),
        (("g", False, b"", 0, None, "", False, False, True, None, 7), b""),
        (("g", False, b"", 0, None, "", False, False, True, None, "x" * 65), b""),
        (("g", False, b"", 0, None, ""), bytes(15)),
        (("g", False, b"", 0, None, ""), bytes(17)),
    ],
)
def test_terms_that_are_malformed_are_refused(whole: Any, fields: Any, payload: bytes) -> None:
    reply = whole.request("open", b"s" * 16, 64, *fields, payload=payload)
    assert reply[:2] == ("refused", "bad-span")
    usage = whole.request("usage")[1]
    assert usage["sessions"] == usage["kv_bytes_reserved"] == 0
    assert whole.open(b"s" * 16)


def test_a_close_with_malformed_names_frees_the_session(whole: Any) -> None:
    session = whole.open(b"s")
    whole.run(prompt(session, steps=20))
    whole.submit(prompt(session, epoch=1, steps=20))
    assert whole.request("close", session, payload=bytes(33))[:2] == ("refused", "bad-span")
    usage = whole.request("usage")[1]
    assert usage["sessions"] == usage["kv_bytes_reserved"] == usage["kv_bytes_cached"] == 0
    assert not whole.core.busy


def test_close_caches_no_more_than_the_session_has(whole: Any) -> None:
    session = whole.open(b"s")
    whole.run(prompt(session, steps=30))
    names = b"".join(bytes([number]) * 16 for number in range(200))
    assert whole.request("close", session, payload=names)[0] == "ok"
    usage = whole.request("usage")[1]
    assert usage["kv_bytes_cached"] == 2 * whole.shard.block_bytes
    assert usage["kv_bytes_reserved"] == 0


def test_background_sessions_are_computed_last(whole: Any) -> None:
    whole.shard.costs = StepCosts(1.0, 3.0, 0.0)
    name = b"background".ljust(16, b".")
    assert whole.request("open", name, 64, "gateway", True, b"", 0, None, "")[:2] == ("ok", 0)
    whole.submit(prompt(name, steps=32))
    whole.step()
    others = [whole.open(b"%d" % number) for number in range(6)]
    for other in others:
        whole.submit(prompt(other, steps=8))
    events = whole.events()
    last = [event.session for event in events if event.final]
    assert last[-1] == name and len(last) == 7


def test_background_work_waits_for_a_request_that_has_begun(whole: Any) -> None:
    now = [100.0]
    whole.core.clock = lambda: now[0]
    name = b"background".ljust(16, b".")
    assert whole.request("open", name, 64, "gateway", True, b"", 0, None, "")[:2] == ("ok", 0)
    whole.submit(prompt(name, steps=8))
    assert whole.core.wait == 0
    whole.core.handle(("hold",), memoryview(b""))
    assert not whole.core.busy and whole.core.wait == pytest.approx(HOLD_S)
    now[0] += HOLD_S
    assert whole.core.busy, "the request went elsewhere"
    other = whole.open(b"other")
    assert not whole.core.busy, "its first span comes soon"
    whole.submit(prompt(other, steps=1))
    assert whole.core.busy
    now[0] += HOLD_S
    assert len([event for event in whole.events() if event.final]) == 2


@pytest.mark.parametrize("kernels", [True, False])
def test_a_background_step_ends_early_for_a_request(
    kernels: bool, checkpoint: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(choice, "kernels", lambda: None)
    made = checkpoint("Llama", head_dim=16)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(worker.steps)
        return worker.steps in (1, 4) and asked.count(worker.steps) == 3  # before the third layer

    worker = driver(made.shard(), stop=stop)
    name = b"background".ljust(16, b".")
    assert worker.request("open", name, 64, "gateway", True, b"", 0, None, "")[:2] == ("ok", 0)
    worker.submit(prompt(name, steps=8))
    worker.step()
    assert not worker.frames, "the step of the prompt ended"
    got = [event.token for event in worker.events()]
    assert got == made.greedy(TOKENS, 8), "it was computed again"
    assert worker.steps == 8 + 2 and asked.count(2) == made.layers
    asked.clear()
    assert len(worker.run(prompt(worker.open(b"other"), steps=2))) == 2
    assert not asked, "an interactive step does not end early"


def test_a_step_with_recurrent_layers_does_not_end_early(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Qwen3Next")
    worker = driver(made.shard(), stop=lambda: True)
    name = b"background".ljust(16, b".")
    assert worker.request("open", name, 64, "gateway", True, b"", 0, None, "")[:2] == ("ok", 0)
    worker.submit(prompt(name, steps=2))
    assert len(worker.events()) == 2


# State.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_state_is_exact_and_continues_alike(
    dtype: str, checkpoint: Any, driver: Any
) -> None:
    shard = checkpoint("Qwen3", head_dim=16).shard(dtype=dtype)
    worker, other = driver(shard), driver(shard)
    source = worker.open(b"source")
    worker.run(prompt(source, steps=4))
    state = bytes(worker.request("export", source)[-1])
    target, twin = other.open(b"target", 30), worker.open(b"twin")
    assert other.request("import", target, payload=state)[:2] == ("ok", 11)
    assert bytes(other.request("export", target)[-1]) == state
    assert worker.request("fork", source, twin)[0] == "ok"
    assert bytes(worker.request("export", twin)[-1]) == state
    span = Span(source, 0, 11, 2, tokens=(4, 5), want="logits")
    expected = worker.hidden(span)
    assert other.hidden(replace(span, session=target)) == expected
    assert worker.hidden(replace(span, session=twin)) == expected


def test_a_refused_copy_leaves_a_session_that_can_begin_anew(whole: Any, checkpoint: Any) -> None:
    source, session = whole.open(b"source"), whole.open(b"s")
    whole.run(prompt(source, steps=20))
    state = bytearray(whole.request("export", source)[-1])
    whole.run(prompt(session, steps=3))
    before = bytes(whole.request("export", session)[-1])
    for bad in (b"", bytes(state[:-4]), bytes(state) + b"1234"):
        assert whole.request("import", session, payload=bad)[:2] == ("refused", "bad-state")
        assert bytes(whole.request("export", session)[-1]) == before
    state[-4:] = np.array([np.nan], np.float32).tobytes()
    assert whole.request("import", session, payload=state)[:2] == ("refused", "bad-state")
    assert bytes(whole.request("export", session)[-1]) == before
    again = whole.tokens(prompt(session, epoch=1, steps=5))
    assert again == checkpoint("Llama").greedy(TOKENS, 5)


def test_state_of_a_busy_session_is_refused(whole: Any) -> None:
    session, other = whole.open(b"s"), whole.open(b"t")
    whole.submit(prompt(session, steps=5))
    whole.step()
    whole.frames.clear()
    for request in (("export", session), ("fork", session, other), ("import", session)):
        assert whole.request(*request)[:2] == ("refused", "busy")


# Loading.


def test_load_replaces_the_shard_and_its_sessions(whole: Any, checkpoint: Any) -> None:

    session = whole.open(b"s")
    whole.submit(prompt(session, steps=5))
    half = checkpoint("Llama").shard(Parts(True, 0, 2, False))
    reply = whole.request("load", 0, payload=load_payload(half))
    assert reply[0] == "ok"
    assert whole.events() == []
    assert whole.request("usage")[1]["sessions"] == 0
    assert code(whole, prompt(session)) == "unknown-session"


@pytest.mark.parametrize(
    ("error", "code"), [(OverflowError("inf"), "bad-config"), (MemoryError(), "no-memory")]
)
def test_a_model_that_fails_unforeseen_leaves_the_others(
    error: Exception, code: str, whole: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    session = whole.open(b"s")
    with monkeypatch.context() as patch:
        patch.setattr(whole.core, "compute", fails)
        reply = whole.request("load", 1, payload=load_payload(checkpoint("Llama").shard()))
    assert reply[:2] == ("refused", code)
    assert len(whole.run(prompt(session, steps=3))) == 3


def test_a_shard_beyond_the_memory_is_refused_before_it_is_read(
    checkpoint: Any, driver: Any
) -> None:

    made = checkpoint("Llama")
    missing = tuple(
        structs.replace(item, chunks=("/nowhere",) * len(item.chunks)) for item in made.tensors
    )
    shard = replace(made.shard(), tensors=missing)
    reply = driver(memory_bytes=1000).request("load", 0, payload=load_payload(shard))
    assert reply[:2] == ("refused", "no-memory")
    reply = driver().request("load", 0, payload=load_payload(replace(shard, kv_bytes=1 << 49)))
    assert reply[:2] == ("refused", "no-memory")


def test_hidden_states_enter_behind_the_embedding_too(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama")
    embedding = driver(made.shard(Parts(True, 0, 0, False)))
    whole = driver(made.shard())
    span = Span(embedding.open(b"s"), 0, 0, 8, tokens=TOKENS)
    (event,) = embedding.run(span)
    assert isinstance(event, HiddenEvent)
    whole.open(b"s")
    after = replace(span, tokens=None, hidden=event.data, want="token", steps=6)
    assert whole.tokens(after) == made.greedy(TOKENS, 6)


# Several shards.


def test_shards_share_a_worker_and_do_not_change_each_others_answers(
    checkpoint: Any, driver: Any
) -> None:
    shards = [checkpoint("Llama").shard(), checkpoint("Qwen2").shard()]
    alone = []
    for shard in shards:
        single = driver(shard)
        alone.append(single.run(prompt(single.open(b"s"), steps=12)))
    both = driver(shards[0])
    assert both.request("load", 1, payload=load_payload(shards[1]))[0] == "ok"
    names = [both.open(b"one"), both.open(b"two", shard=1)]
    for name in names:
        both.submit(prompt(name, steps=12))
    found = both.events()
    for name, want in zip(names, alone, strict=True):
        tokens = [event.token for event in found if event.session == name]
        assert tokens == [event.token for event in want]
    usage = both.request("usage")[1]
    weights = [driver(shard).request("usage")[1]["weight_bytes"] for shard in shards]
    assert usage["weight_bytes"] == sum(weights)


def test_a_shard_is_dropped_or_replaced_without_the_others(checkpoint: Any, driver: Any) -> None:
    worker = driver(checkpoint("Llama").shard())
    shard = load_payload(checkpoint("Qwen2").shard())
    for request in ("unload", "load"):
        assert worker.request("load", 1, payload=shard)[0] == "ok"
        stays, goes = worker.open(b"stays"), worker.open(b"goes", shard=1)
        payload = shard if request == "load" else b""
        assert worker.request(request, 1, payload=payload)[0] == "ok"
        assert code(worker, prompt(goes)) == "unknown-session"
        assert worker.run(prompt(stays))
        worker.request("close", stays)
    assert worker.request("unload", 1)[0] == worker.request("unload", 1)[0] == "ok"
    reply = worker.request("open", b"n" * 16, 8, "gateway", False, b"", 1, None, "")
    assert reply[:2] == ("refused", "no-shard")


def test_the_memory_limit_is_for_all_shards_together(checkpoint: Any, driver: Any) -> None:
    shard = checkpoint("Llama").shard()
    size = driver(shard).shard.bytes
    worker = driver(shard, memory_bytes=2 * size - 1)
    reply = worker.request("load", 1, payload=load_payload(shard))
    assert reply[:2] == ("refused", "no-memory")
    assert worker.request("load", 0, payload=load_payload(shard))[0] == "ok"  # in its own place
    worker = driver(shard, memory_bytes=2 * size)
    assert worker.request("load", 1, payload=load_payload(shard))[0] == "ok"


def test_state_is_not_copied_between_shards(checkpoint: Any, driver: Any) -> None:
    shard = checkpoint("Llama").shard()
    worker = driver(shard)
    worker.request("load", 1, payload=load_payload(shard))
    here, there = worker.open(b"here"), worker.open(b"there", shard=1)
    worker.run(prompt(here))
    assert worker.request("fork", here, there)[:2] == ("refused", "bad-state")


@pytest.mark.parametrize("header", [(), ("x",), (0, 0)])
def test_a_shard_without_a_number_is_refused(whole: Any, header: Any) -> None:
    assert whole.request("unload", *header)[:2] == ("refused", "bad-span")
    assert whole.open(b"s")


def test_users_of_a_gateway_share_its_part_of_each_step(whole: Any) -> None:
    """Two users have eight and two sessions, and four rows fit into a step."""
    whole.shard.costs = StepCosts(0.0, 0.04, 0.0)
    names = [b"%016d" % number for number in range(10)]
    for number, name in enumerate(names):
        user = b"many" if number < 8 else b"few"
        assert whole.request("open", name, 64, "gateway", False, user, 0, None, "")[:2] == ("ok", 0)
        whole.submit(Span(name, 0, 0, 1, tokens=(3,), want="token", steps=60))
    for _ in range(30):
        whole.step()
    made = [whole.core.runner.find(name).table.length for name in names]
    assert sum(made[:8]) == pytest.approx(sum(made[8:]), rel=0.1)


def test_the_most_likely_tokens_come_with_each_token(whole: Any, checkpoint: Any) -> None:
    sampling = Sampling(1.5, 0, 1.0, seed=5)
    events = whole.run(prompt(whole.open(b"s"), steps=6, top=4, sampling=sampling))
    text = list(TOKENS)
    for event in events:
        logprobs = torch.log_softmax(checkpoint("Llama").logits(text)[-1], -1)
        expected = logprobs.topk(4)
        assert [token for token, _ in event.top] == expected.indices.tolist()
        values = [logprob for _, logprob in event.top]
        assert values == pytest.approx(expected.values.tolist(), abs=1e-4)
        text.append(event.token)
    plain = whole.run(prompt(whole.open(b"p"), steps=6, sampling=sampling))
    assert [event.token for event in plain] == [event.token for event in events]
    assert all(event.top == () for event in plain)


# More sessions than the memory has room for to their ends.


def begin(worker: Any, name: bytes, tokens: int, owner: str = "g", **terms: Any) -> tuple[Any, ...]:
    """Open a session that reserves two blocks, and ask it for a text of `tokens` positions."""
    background = terms.get("background", False)
    reply = worker.request(
        *("open", name, tokens, owner, background, b"", 0, terms.get("soon", 32)),
        *(terms.get("adapter", ""), terms.get("own", False)),
    )
    if reply[0] == "ok":
        worker.submit(prompt(name, steps=tokens - len(TOKENS) + 1))
    found: tuple[Any, ...] = reply
    return found


def small_pool(checkpoint: Any, driver: Any, blocks: int) -> Any:
    shard = checkpoint("Llama").shard()
    size = blocks * driver(shard).shard.block_bytes
    return driver(replace(shard, kv_bytes=size))


def preempted(events: Any) -> list[bytes]:
    ended = [event for event in events if isinstance(event, FailedEvent)]
    assert {event.code for event in ended} <= {"preempted"}
    return [event.session for event in ended]


def test_the_youngest_session_gives_way_and_the_others_reach_their_ends(
    checkpoint: Any, driver: Any
) -> None:
    text = checkpoint("Llama").greedy(TOKENS, 57)
    worker = small_pool(checkpoint, driver, 8)
    names = [b"%016d" % number for number in range(4)]
    for name in names:
        assert begin(worker, name, 64)[0] == "ok"
    assert begin(worker, b"x" * 16, 64)[:2] == ("refused", "no-memory")
    events = worker.events()
    assert preempted(events) == [names[3], names[2]]
    for name in names[:2]:
        assert [event.token for event in events if event.session == name] == text
    usage = worker.request("usage")[1]
    assert usage["sessions"] == 2
    for name in names[2:]:
        made = [each.token for each in events if each.session == name and hasattr(each, "token")]
        assert made == text[: len(made)] and len(made) >= 20, "what was sent is right"


def test_the_owner_that_has_most_gives_way_first(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 8)
    for number in range(3):
        assert begin(worker, b"many%012d" % number, 64, "many")[0] == "ok"
    assert begin(worker, b"one".ljust(16), 64, "one")[0] == "ok"
    assert preempted(worker.events()) == [b"many%012d" % 2, b"many%012d" % 1]


def test_the_owner_of_the_machine_gives_way_last(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 8)
    for number in range(3):
        assert begin(worker, b"mine%012d" % number, 64, "mine", own=True)[0] == "ok"
    assert begin(worker, b"one".ljust(16), 64, "one")[0] == "ok"
    assert preempted(worker.events()) == [b"one".ljust(16), b"mine%012d" % 2]


def test_background_sessions_give_way_before_all_others(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 6)
    assert begin(worker, b"job".ljust(16), 64, "one", background=True)[0] == "ok"
    for number in range(2):
        assert begin(worker, b"many%012d" % number, 48, "many")[0] == "ok"
    assert preempted(worker.events()) == [b"job".ljust(16)]


def test_sessions_of_another_shard_are_left_alone(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 4)
    worker.request("load", 1, payload=load_payload(checkpoint("Llama").shard()))
    other = worker.open(b"other", shard=1)
    for number in range(2):
        assert begin(worker, b"%016d" % number, 64)[0] == "ok"
    assert preempted(worker.events()) == [b"%016d" % 1]
    assert worker.run(prompt(other))


def test_a_session_that_could_never_end_is_refused(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 3)
    assert begin(worker, b"x" * 16, 49)[:2] == ("refused", "no-memory")
    assert begin(worker, b"x" * 16, 48)[0] == "ok"
    assert preempted(worker.events()) == []


@pytest.mark.parametrize("soon", [-1, 1.0, "1", True])
def test_what_is_reserved_is_a_number(whole: Any, soon: Any) -> None:
    assert begin(whole, b"x" * 16, 64, soon=soon)[:2] == ("refused", "bad-span")


def test_copies_of_state_take_no_memory_that_is_not_there(checkpoint: Any, driver: Any) -> None:
    worker = small_pool(checkpoint, driver, 5)
    long = worker.open(b"long", 48)
    worker.run(Span(long, 0, 0, 40, tokens=TOKENS * 5))
    state = bytes(worker.request("export", long)[-1])
    assert worker.request("open", b"n" * 16, 48, "g", False, b"", 0, 16, "")[0] == "ok"
    for request, payload in (("import", state), ("fork", b"")):
        fields = (b"n" * 16,) if request == "import" else (long, b"n" * 16)
        assert worker.request(request, *fields, payload=payload)[:2] == ("refused", "no-memory")
    assert worker.request("usage")[1]["kv_bytes_reserved"] == 4 * worker.shard.block_bytes


def test_state_of_another_class_of_exactness_is_refused(
    checkpoint: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = checkpoint("Llama").shard()
    here = driver(shard)
    name = here.open(b"s")
    here.run(prompt(name))
    state = bytes(here.request("export", name)[-1])
    assert "float32" in here.shard.compute.exactness
    for exactness, code in ((here.shard.compute.exactness, "ok"), ("AVX9 plain", "refused")):
        monkeypatch.setattr(TorchCompute, "exactness", exactness)
        there = driver(shard)
        other = there.open(b"o")
        assert there.request("import", other, payload=state)[0] == code


def test_the_time_of_a_step_is_divided_as_the_scheduler_predicts_it(
    checkpoint: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts pay for the reading of the weights, and each row for itself."""
    engine = driver(checkpoint("Llama").shard())
    engine.shard.costs = StepCosts(5.0, 1.0, 0.0)
    now = iter(range(10**6))
    monkeypatch.setattr(engine.core, "clock", lambda: 8.0 * next(now))
    text, prompt = engine.open(b"text"), engine.open(b"prompt")
    engine.run(Span(text, 0, 0, 2, tokens=(1, 2)))
    engine.submit(Span(text, 0, 2, 1, tokens=(3,)))
    engine.submit(Span(prompt, 0, 0, 2, tokens=(4, 5)))
    first, second = engine.events()
    assert engine.steps == 2
    assert [first.seconds, second.seconds] == [6.0, 2.0]
    assert [first.predicted, second.predicted] == [6.0, 2.0]


def test_a_session_pays_for_the_parameters_of_its_span(whole: Any) -> None:
    picks = PickCosts(one=0.002, all=0.004, top=0.01, vocabulary=101)
    whole.shard.costs = StepCosts(0.0, 0.001, 0.0, picks=picks)
    session = whole.open(b"s")
    events = whole.run(prompt(session, steps=3, sampling=Sampling(1.0), top=2))
    predicted = [event.predicted for event in events]
    assert predicted == pytest.approx([0.008 + 0.014, 0.001 + 0.014, 0.001 + 0.014])
    events = whole.run(prompt(session, epoch=1, steps=2))
    assert [event.predicted for event in events] == pytest.approx([0.008, 0.001])
    drawn = prompt(session, epoch=2, want="hidden", sampling=Sampling(1.0))
    (event,) = whole.run(replace(drawn, want="pooled"))
    assert event.predicted == pytest.approx(0.008), "no token is chosen"


def test_what_parameters_take_is_measured_at_the_head(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama", vocab_size=20_000)
    first, last = made.splits(2)
    picks = driver(made.shard(last), measured=True).shard.costs.picks
    assert 0.0 < picks.one < picks.all and picks.top > 0.0 and picks.vocabulary == 20_000
    assert driver(made.shard(first), measured=True).shard.costs.picks == NO_PICK_COSTS
