"""Penalties and biases: the specification's vectors, and a session's tokens so far in a worker."""

import array
import math
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import FailedEvent, Rules, Sampling, Span
from shoal.tasks.engine.sampling import choose
from shoal.tasks.engine.spans.rules import SessionRules, recalled

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "sampling.md"
PROMPT = (5, 60, 12, 7, 33, 90, 2, 41)
PENALTIES = Rules(((7, 1.5), (50, -100.0), (60, 0.5)), 1.3, 0.4, -0.2)
DRAWN = Sampling(1.3, 40, 0.9, seed=77, min_p=0.01)


def plain(
    logits: Sequence[float], rules: Rules, prompt: Sequence[int], answer: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The specification once more, in the slowest possible way."""
    values, counts, bias = [float(each) for each in logits], Counter(answer), dict(rules.bias)
    for token in range(len(values)):
        value = values[token] + bias.get(token, 0.0)
        if token in prompt or token in answer:
            value = value / rules.repetition if value > 0 else value * rules.repetition
        value -= rules.frequency * counts[token] + rules.presence * (counts[token] > 0)
        values[token] = value
    return np.array(values, np.float32)


def listed(cell: str) -> list[int]:
    return [int(each) for each in cell.split()]


def test_the_vectors_of_the_specification() -> None:
    lines = SPEC.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    vectors = [row for row in cells if len(row) == 10 and row[0][:1].isdigit()]
    assert len(vectors) >= 6
    logits = np.array([(i * i * 37 % 101) / 16 - 3 for i in range(64)], dtype=np.float32)
    for heat, min_p, seed, prompt, answer, bias, repetition, frequency, presence, token in vectors:
        pairs = tuple(
            (int(id), float(n)) for id, _, n in (each.partition(":") for each in bias.split())
        )
        rules = SessionRules(
            Rules(pairs, float(repetition), float(frequency), float(presence)), len(logits)
        )
        rules.recall(20, listed(prompt), listed(answer))
        sampling = Sampling(float(heat), seed=int(seed), min_p=float(min_p))
        assert choose(logits, sampling, 20, rules.change(20))[0] == int(token)


def test_changes_equal_the_plain_reading_while_an_answer_grows() -> None:
    generator = np.random.default_rng(3)
    rules, answer = SessionRules(PENALTIES, 101), list[int]()
    rules.recall(len(PROMPT), sorted(set(PROMPT)), ())
    for position in range(len(PROMPT), 200):  # more tokens than there is room for at first
        logits = generator.normal(size=101).astype(np.float32)
        change = rules.change(position)
        found = logits.copy()
        found[change.ids] = change.of(logits[change.ids])
        expected = plain(logits.tolist(), PENALTIES, PROMPT, answer)
        assert found == pytest.approx(expected, abs=1e-6)
        answer.append(int(generator.integers(101)))
        rules.took(position, answer[-1])


def test_drafts_count_only_where_they_are_asked_about() -> None:
    rules, other = SessionRules(PENALTIES, 101), SessionRules(PENALTIES, 101)
    rules.recall(8, (2, 5), ())
    other.recall(10, (2, 5), (9, 9))
    before = rules.change(8)
    drafted, told = rules.change(10, (9, 9)), other.change(10)
    assert by_id(drafted) == by_id(told)
    assert by_id(rules.change(8)) == by_id(before)


def by_id(change: Any) -> dict[int, tuple[float, ...]]:
    """The values by id, without those that change nothing."""
    found = zip(*(each.tolist() for each in change), strict=True)
    return {id: tuple(rest) for id, *rest in found if tuple(rest) != (0.0, 1.0, 0.0)}


def test_an_answer_that_is_chosen_again_replaces_the_former_tokens() -> None:
    rules, other = SessionRules(PENALTIES, 101), SessionRules(PENALTIES, 101)
    rules.recall(8, (), (3,))
    for position, token in ((8, 4), (9, 4), (10, 6), (9, 7)):
        rules.took(position, token)
    other.recall(10, (), (3, 4, 7))
    assert by_id(rules.change(10)) == by_id(other.change(10))
    assert by_id(rules.change(8)) == by_id(changed_at(8, (3,)))


def changed_at(position: int, answer: Sequence[int]) -> Any:
    rules = SessionRules(PENALTIES, 101)
    rules.recall(position, (), answer)
    return rules.change(position)


def test_penalties_without_the_tokens_so_far_are_refused() -> None:
    rules = SessionRules(PENALTIES, 101)
    for position in (0, 8):
        with pytest.raises(EngineError, match="position") as failure:
            rules.change(position)
        assert failure.value.code == "gap"
    rules.took(8, 3)  # of an earlier epoch
    rules.recall(8, (), (3, 4))
    for position in (5, 9):
        with pytest.raises(EngineError):
            rules.change(position)
        rules.took(position, 1)  # ignored
    assert by_id(rules.change(8)) == by_id(changed_at(8, (3, 4)))
    assert by_id(rules.change(6)) == by_id(changed_at(6, ()))
    only_bias = SessionRules(Rules(((7, 1.0),)), 101)
    assert by_id(only_bias.change(1000)) == {7: (1.0, 1.0, 0.0)}


@pytest.mark.parametrize(
    ("position", "prompt", "answer", "code"),
    [
        (2, (1, 2), (3,), "bad-span"),
        (8, (101,), (), "bad-token"),
        (8, (), (101,), "bad-token"),
        (8, (-1,), (), "bad-token"),
    ],
)
def test_tokens_that_cannot_be_are_refused(
    position: int, prompt: Sequence[int], answer: Sequence[int], code: str
) -> None:
    with pytest.raises(EngineError) as failure:
        SessionRules(PENALTIES, 101).recall(position, prompt, answer)
    assert failure.value.code == code


LONG = 131_072  # positions of a long context


def told() -> tuple[SessionRules, int]:
    """Return rules that were told as many tokens of an answer as fit, and the bytes they take."""
    rules = SessionRules(PENALTIES, LONG + 1)
    frame = array.array("i", range(LONG)).tobytes()
    tracemalloc.start()
    try:
        rules.recall(*recalled((b"s" * 16, LONG, 0), memoryview(frame)))
        return rules, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def test_a_gateway_that_tells_a_whole_context_does_not_stall_the_worker() -> None:
    rules, size = told()
    assert size < 4e6, "16 sessions of each gateway can do so"
    frame = memoryview(array.array("i", range(LONG)).tobytes())
    assert seconds(lambda: rules.recall(*recalled((b"s" * 16, LONG, 0), frame))) < 0.05

    def window() -> None:  # at the answer's first token, so that all of them are behind it
        for made in range(64):
            rules.change(made, [7] * made)

    assert seconds(window) < 0.8
    assert by_id(rules.change(2, ())).keys() == {0, 1, 7, 50, 60}


# In a worker.


def recall(worker: Any, name: bytes, position: int, prompt: Any, answer: Any) -> tuple[Any, ...]:
    payload = array.array("i", (*prompt, *answer)).tobytes()
    reply: tuple[Any, ...] = worker.request("recall", name, position, len(prompt), payload=payload)
    return reply


def opened(worker: Any, name: bytes, rules: Rules = PENALTIES, **more: Any) -> bytes:
    name = worker.open(name, 96, rules=rules, **more)
    assert recall(worker, name, len(PROMPT), sorted(set(PROMPT)), ())[0] == "ok"
    return name


@pytest.fixture(scope="module")
def worker(driver: Any, checkpoint: Any) -> Any:
    return driver(checkpoint("Llama").shard())


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN])
def test_a_loop_equals_choosing_from_changed_logits(
    worker: Any, checkpoint: Any, sampling: Sampling
) -> None:
    name = opened(worker, f"loop {sampling.seed}".encode())
    span = Span(name, 0, 0, 8, tokens=PROMPT, want="token", steps=24, sampling=sampling)
    text = list[int](PROMPT)
    for event in worker.run(span):
        logits = checkpoint("Llama").logits(text)[-1].numpy()
        token, _ = choose(plain(logits, PENALTIES, PROMPT, text[8:]), sampling, len(text))
        assert (event.position, event.token) == (len(text), token)
        assert event.logprob == pytest.approx(float(logits[token]) - lse(logits), abs=1e-4)
        text.append(token)
    assert len(text) == 32 and 50 not in text[8:]
    plain_text = worker.tokens(Span(worker.open(name[::-1], 96), 0, 0, 8, tokens=PROMPT,
                                    want="token", steps=24, sampling=sampling))  # fmt: skip
    assert plain_text != text[8:]


def lse(logits: Any) -> float:
    return math.log(float(np.exp(logits.astype(np.float64)).sum()))


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN])
def test_a_replay_from_any_token_continues_the_text(worker: Any, sampling: Sampling) -> None:
    def asked(name: bytes, start: int, tokens: Sequence[int], steps: int) -> Span:
        more: Any = {"want": "token", "steps": steps, "sampling": sampling}
        return Span(name, 0, start, len(tokens), tokens=tuple(tokens), **more)

    name = opened(worker, f"whole {sampling.seed}".encode())
    text = worker.tokens(asked(name, 0, PROMPT, 20))
    for made in (1, 7, 19):
        again = worker.open(f"replay {made} {sampling.seed}".encode(), 96, rules=PENALTIES)
        before = (*PROMPT, *text[:made])
        recall(worker, again, len(before), sorted(set(PROMPT)), text[:made])
        assert worker.tokens(asked(again, 0, before, 20 - made)) == text[made:]


def test_a_row_with_rules_leaves_its_mates_alone(worker: Any) -> None:
    def asked(name: bytes) -> Span:
        return Span(name, 0, 0, 8, tokens=PROMPT, want="token", steps=12, sampling=DRAWN)

    alone = worker.run(asked(worker.open(b"alone", 96)))
    ruled = worker.tokens(asked(opened(worker, b"ruled")))
    names = [worker.open(b"mate", 96), opened(worker, b"ruled too")]
    for name in names:
        worker.submit(asked(name))
    events = worker.events()
    mate = [(each.token, each.logprob) for each in events if each.session == names[0]]
    assert mate == [(each.token, each.logprob) for each in alone]
    assert [each.token for each in events if each.session == names[1]] == ruled


def test_a_session_with_penalties_that_was_told_nothing_fails_alone(worker: Any) -> None:
    name = worker.open(b"untold", 96, rules=PENALTIES)
    (event,) = worker.run(Span(name, 0, 0, 8, tokens=PROMPT, want="token"))
    assert isinstance(event, FailedEvent) and event.code == "gap"
    assert recall(worker, name, 8, (), ())[0] == "ok"
    (event,) = worker.run(Span(name, 0, 0, 8, tokens=PROMPT, want="token"))
    assert event.token >= 0
    recall(worker, name, 30, (), ())  # an older span may still be running, whose tokens are late
    (event,) = worker.run(Span(name, 0, 8, 1, tokens=(1,), want="token"))
    assert event.code == "gap"


@pytest.mark.parametrize(
    ("fields", "payload", "code"),
    [
        ((8, 0), b"\0\0\0", "bad-span"),
        ((8, -1), b"", "bad-span"),
        ((8,), b"", "bad-span"),
        ((8, 0, 0), b"", "bad-span"),
        ((8, "0"), b"", "bad-span"),
        ((1, 0), bytes(8), "bad-span"),
        ((8, 0), b"\xff\xff\xff\xff", "bad-token"),
    ],
)
def test_malformed_recalls_are_refused(
    worker: Any, fields: tuple[Any, ...], payload: bytes, code: str
) -> None:
    name = b"malformed".ljust(16, b".")
    if name not in worker.core.sessions:
        worker.open(name, 96, rules=PENALTIES)
    assert worker.request("recall", name, *fields, payload=payload)[:2] == ("refused", code)


def test_only_sessions_with_rules_are_told_tokens(worker: Any) -> None:
    name = worker.open(b"no rules", 96)
    assert recall(worker, name, 8, (), ())[:2] == ("refused", "bad-span")
    assert recall(worker, b"unknown", 8, (), ())[:2] == ("refused", "unknown-session")


def test_a_bias_outside_of_the_vocabulary_is_refused(worker: Any) -> None:
    used = worker.core.shards[0].pool.promised
    for rules, code in (
        ([[[101, 1.0]], 1.0, 0.0, 0.0], "bad-token"),
        ([[[5, 101.0]], 1.0, 0.0, 0.0], "bad-span"),
        ([[[5, 1.0], [4, 1.0]], 1.0, 0.0, 0.0], "bad-span"),
        ([[], 1.0, math.nan, 0.0], "bad-span"),
        ([[], 0.0, 0.0, 0.0], "bad-span"),
        (7, "bad-span"),
    ):
        fields = b"biased".ljust(16, b"."), 64, "gateway", False, b"", 0, None, ""
        found = worker.request("open", *fields, False, False, True, rules)
        assert found[:2] == ("refused", code), rules
    assert worker.core.shards[0].pool.promised == used


def test_rules_are_paid_for(worker: Any) -> None:
    picks = worker.shard.costs.picks.__class__(0.0, 0.0, 0.0, 100_000, 0.003)
    assert picks.seconds(Sampling(), 0) == 0.0
    assert picks.seconds(Sampling(), 0, 5) == 0.003
    assert picks.seconds(Sampling(), 0, 2048) == pytest.approx(0.006)
    assert picks.seconds(Sampling(), 0, 10**9) == pytest.approx(0.003 * 100_000 / 1024)
