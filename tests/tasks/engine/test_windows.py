"""Windows of drafts in the worker: the same tokens, bit by bit, and every way to be wrong."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from shoal.tasks.engine.interface import (
    DroppedEvent,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Parts,
    Sampling,
    Span,
    TokenEvent,
)
from tests.tasks.engine.test_llama import CASES

PROMPT = (5, 17, 3, 88, 41, 2, 9, 77)
GREEDY, DRAWN = Sampling(), Sampling(1.3, 40, 0.9, seed=77)
Said = tuple[int, int, float]  # position, token, logprob
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def workers(driver: Any, checkpoint: Any) -> Any:
    """Return the workers of a first stage and a head, by the family of their model."""
    made: dict[str, tuple[Any, Any]] = {}

    def pair(family: str) -> tuple[Any, Any]:
        if family not in made:
            model = checkpoint(family)
            middle = model.layers // 2
            parts = Parts(True, 0, middle, False), Parts(False, middle, model.layers, True)
            first, head = (driver(model.shard(each)) for each in parts)
            made[family] = first, head
        return made[family]

    return pair


class Stages:
    """The first stage and the head of a chain, each with one session, which a test feeds."""

    def __init__(self, workers: tuple[Any, Any], sampling: Sampling, **terms: Any) -> None:
        self.first, self.head = workers
        self.name = f"session {next(NUMBERS)}".encode().ljust(16, b".")
        self.first.open(self.name, 96)
        self.head.open(self.name, 96)
        self.terms = {"sampling": sampling, **terms}
        self.said: list[Said] = []
        self.dropped = 0

    def send(self, start: int, tokens: Sequence[int], *, draft: bool = False) -> None:
        """Have tokens computed by both stages."""
        span = Span(self.name, 0, start, len(tokens), tokens=tuple(tokens), draft=draft)
        for event in self.first.run(span):
            assert isinstance(event, HiddenEvent), event
            self.pass_on(event, tokens, draft=draft)

    def pass_on(self, event: HiddenEvent, tokens: Sequence[int], *, draft: bool) -> None:
        span = Span(self.name, 0, event.start, event.count, hidden=bytes(event.data), want="token")
        span = replace(span, draft=draft, tokens=tuple(tokens) if draft else None, **self.terms)
        self.hear(self.head.run(span))

    def hear(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, DroppedEvent):
                self.dropped += 1
                continue
            assert isinstance(event, TokenEvent), event
            self.said.append((event.position, event.token, event.logprob))

    def plain(self, count: int) -> list[Said]:
        """Generate tokens one by one."""
        self.send(0, PROMPT)
        while len(self.said) < count:
            position, token, _ = self.said[-1]
            self.send(position, (token,))
        return self.said


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])  # the other with a sliding window
def test_text_and_logprobs_are_the_same_with_windows_of_any_quality(
    workers: Any, family: str, sampling: Sampling
) -> None:
    expected = Stages(workers(family), sampling).plain(40)
    for seed in range(4):
        random, stages = Random(seed), Stages(workers(family), sampling)
        stages.send(0, PROMPT)
        while len(stages.said) < 40:
            position, token, _ = stages.said[-1]
            right = [said[1] for said in expected[len(stages.said) :][: random.randrange(6)]]
            wrong = [random.randrange(64) for _ in range(random.randrange(3))]
            stages.send(position, [token, *right, *wrong], draft=True)
            if random.random() < 0.3:  # a window behind a wrong one
                stages.send(position + 1 + len(right) + len(wrong), [1, 2], draft=True)
        assert stages.said[:40] == expected


def test_a_window_that_does_not_continue_the_text_is_dropped(workers: Any) -> None:
    stages = Stages(workers("Llama"), GREEDY)
    stages.send(0, PROMPT)
    ((position, token, _),) = stages.said
    event = stages.first.run(Span(stages.name, 0, position, 2, tokens=(token, 1), draft=True))[0]
    for other in (token + 1, token - 1):
        stages.pass_on(event, (other, 1), draft=True)
    stages.pass_on(replace(event, start=position + 1), (token, 1), draft=True)
    stages.pass_on(replace(event, start=position - 1), (token, 1), draft=True)
    assert (stages.dropped, len(stages.said)) == (4, 1)
    stages.pass_on(event, (token, 1), draft=True)
    assert len(stages.said) > 1


def test_windows_that_are_overtaken_are_dropped_before_they_are_computed(workers: Any) -> None:
    worker = Stages(workers("Llama"), GREEDY).first
    name = worker.open(b"t", 96)
    worker.run(Span(name, 0, 0, len(PROMPT), tokens=PROMPT))
    steps = worker.steps
    for start in (8, 11, 14):
        worker.submit(Span(name, 0, start, 3, tokens=(1, 2, 3), draft=True))
    worker.submit(Span(name, 0, 8, 1, tokens=(9,)))
    events = worker.events()
    assert [(type(event), event.start) for event in events] == [
        *((DroppedEvent, start) for start in (8, 11, 14)),
        (HiddenEvent, 8),
    ]
    assert worker.steps == steps + 1


def test_a_window_is_one_step_beside_other_sessions(workers: Any) -> None:
    worker = Stages(workers("Llama"), GREEDY).first
    names = [worker.open(name, 96) for name in (b"a", b"b", b"c")]
    for name in names:
        worker.submit(Span(name, 0, 0, len(PROMPT), tokens=PROMPT))
    worker.events()
    steps = worker.steps
    for name in names:
        worker.submit(Span(name, 0, 8, 4, tokens=(1, 2, 3, 4), draft=True))
    alone = [event.data for event in worker.events()]
    assert worker.steps == steps + 1
    for place, token in enumerate((1, 2, 3, 4)):
        (event,) = worker.run(Span(names[0], 0, 8 + place, 1, tokens=(token,)))
        size = len(event.data)
        assert event.data == alone[0][size * place : size * (place + 1)]


def test_a_stop_id_ends_a_window(workers: Any) -> None:
    expected = Stages(workers("Llama"), GREEDY).plain(12)
    at = next(
        at for at in range(3, 12) if expected[at][1] not in {each[1] for each in expected[:at]}
    )
    stages = Stages(workers("Llama"), GREEDY, stop_ids=(expected[at][1],))
    stages.send(0, PROMPT)
    stages.send(8, [each[1] for each in expected], draft=True)
    assert stages.said == expected[: at + 1]
    stages.send(8 + at, [expected[at][1], 1], draft=True)
    assert (stages.dropped, len(stages.said)) == (1, at + 1)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
def test_a_loop_takes_guesses_and_says_the_same(
    driver: Any, checkpoint: Any, sampling: Sampling
) -> None:
    made = checkpoint("Llama")
    span = Span(b"", 0, 0, len(PROMPT), tokens=PROMPT, want="token", steps=40, sampling=sampling)
    whole = driver(made.shard())
    expected = whole.run(replace(span, session=whole.open(b"s", 96)))
    steps = whole.steps
    for seed in range(4):
        random, worker = Random(seed), whole
        worker.steps = 0
        name = worker.open(f"s{seed}".encode(), 96)
        worker.submit(replace(span, session=name))
        events = list[EngineEvent]()
        while worker.core.busy:
            worker.step()
            known = len(events) + len(worker.frames)
            right = [event.token for event in expected[known - 1 :][: 1 + random.randrange(8)]]
            guess = (*right, random.randrange(64), random.randrange(64))
            start = len(PROMPT) + known - 1
            if start + len(guess) < 96:
                worker.submit(
                    Span(name, 0, start, len(guess), tokens=guess, want="token", draft=True)
                )
        events = worker.events()
        assert [replace(event, seconds=0.0, predicted=0.0, session=b"") for event in events] == [
            replace(event, seconds=0.0, predicted=0.0, session=b"") for event in expected
        ]
        assert worker.steps < steps
        assert len(worker.core.runner.find(name).guesses) <= 32


def test_malformed_windows_are_refused(workers: Any) -> None:
    stages = Stages(workers("Llama"), GREEDY)
    stages.send(0, PROMPT)
    window = Span(stages.name, 0, 8, 2, tokens=(1, 2), draft=True)
    hidden = bytes(2 * 32 * 4)
    cases = [
        (stages.first, replace(window, count=65, tokens=(1,) * 65), "bad-span"),
        (stages.first, replace(window, tokens=(1, 10**6)), "bad-token"),
        (stages.first, replace(window, tokens=(1, -1)), "bad-token"),
        (stages.first, replace(window, tokens=None, hidden=hidden), "bad-span"),
        (stages.first, replace(window, hidden=hidden), "bad-span"),
        (stages.first, replace(window, start=95), "too-long"),
        (stages.head, replace(window, want="token"), "no-embedding"),
        (stages.head, replace(window, tokens=None, hidden=hidden, want="token"), "bad-span"),
        (stages.head, replace(window, hidden=hidden), "bad-span"),
        (stages.head, replace(window, hidden=hidden[4:], want="token"), "bad-hidden"),
        (stages.head, replace(window, hidden=hidden, tokens=(1, 10**6), want="token"), "bad-token"),
    ]
    for worker, span, code in cases:
        (event,) = worker.run(span)
        assert isinstance(event, FailedEvent), span
        assert event.code == code, event


def test_recurrent_models_have_no_windows(driver: Any, checkpoint: Any) -> None:
    worker = driver(checkpoint(CASES["qwen3_next"][0], **CASES["qwen3_next"][1]).shard())
    name = worker.open(b"s", 96)
    (event,) = worker.run(Span(name, 0, 0, 2, tokens=(1, 2), draft=True, want="token"))
    assert isinstance(event, FailedEvent)
    assert event.code == "unsupported"
