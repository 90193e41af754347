"""The kind `evaluate`: its rows, its outputs, and what it sums up."""

import json
from collections.abc import Awaitable, Callable, Sequence
from math import exp

import pytest
import trio

from shoal.tasks.errors import PromptTooLong
from shoal.tasks.inference.conversation.recomputing import Recomputed, Ties
from shoal.tasks.inference.generation import Apart, GatewayEvent, GenerateRequest, Summary
from shoal.tasks.jobs.kinds.evaluate import Evaluate, EvaluateRow
from shoal.tasks.jobs.kinds.kind import BadRow, Fields, RowTerms
from shoal.tasks.jobs.spec import JobSpec
from shoal.tasks.jobs.wholes import figures_of

ROOT = "ab" * 32


class Services:
    """Losses that depend on the text alone: 1 nat for each letter `a`, 3 for others."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def generate(
        self, request: GenerateRequest, emit: Callable[[GatewayEvent], Awaitable[None]]
    ) -> Summary:
        raise NotImplementedError

    async def embed_one(self, request: GenerateRequest) -> tuple[Sequence[float], int]:
        raise NotImplementedError

    async def recompute(
        self, request: GenerateRequest, tokens: Sequence[int], ties: Ties
    ) -> Recomputed:
        raise NotImplementedError

    async def loss(
        self, root: str, adapter: str, given: str, text: str, apart: Apart | None, job: str
    ) -> tuple[float, int]:
        await trio.lowlevel.checkpoint()
        self.asked.append((root + adapter, given, text))
        if len(text) > 50:
            raise PromptTooLong(len(text), 50)
        return float(sum(1 if letter == "a" else 3 for letter in text)), len(text)


class Always:
    def is_over(self) -> bool:
        return False

    async def come(self) -> None:
        await trio.lowlevel.checkpoint()


def row(**fields: object) -> EvaluateRow:
    return Evaluate().read(json.dumps(fields).encode())


async def done(services: Services, **fields: object) -> Fields:
    terms = RowTerms("job", JobSpec(ROOT), Always(), services)
    return await Evaluate().do(row(**fields), terms)


@pytest.mark.trio
async def test_a_text_gets_its_loss() -> None:
    services = Services()
    found = await done(services, text="aab", prompt="so: ")
    assert found == {"loss": 5.0, "tokens": 3, "perplexity": pytest.approx(exp(5 / 3))}
    assert services.asked == [(ROOT, "so: ", "aab")]
    spec = JobSpec(ROOT, adapter="ad" * 32)
    await Evaluate().do(row(text="aab"), RowTerms("job", spec, Always(), services))
    assert services.asked[1] == (ROOT + "ad" * 32, "", "aab")


@pytest.mark.trio
async def test_the_likeliest_choice_is_chosen() -> None:
    services = Services()
    found = await done(services, prompt="q", choices=["bb", "aa", "ab"], answer=1)
    assert found == {"choice": 1, "right": True, "losses": [6.0, 2.0, 4.0], "tokens": 6}
    wrong = await done(services, prompt="q", choices=["bb", "aa"], answer=0)
    assert (wrong["choice"], wrong["right"]) == (1, False)


@pytest.mark.trio
async def test_a_text_beyond_the_context_is_a_bad_row() -> None:
    with pytest.raises(BadRow) as caught:
        await done(Services(), text="a" * 51)
    assert caught.value.code == "prompt-too-long"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": ""},
        {"text": "a", "choices": ["b", "c"], "answer": 0},
        {"text": "a", "answer": 0},
        {"prompt": "q", "choices": ["b"], "answer": 0},
        {"prompt": "q", "choices": ["b", ""], "answer": 0},
        {"prompt": "q", "choices": ["b", "c"]},
        {"prompt": "q", "choices": ["b", "c"], "answer": 2},
        {"prompt": "q", "choices": ["b", "c"], "answer": -1},
        {"choices": ["b", "c"], "answer": 0},
        {"prompt": "q", "choices": ["b"] * 65, "answer": 0},
        {"text": 7},
    ],
)
def test_malformed_rows_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadRow):
        row(**fields)


def test_figures_count_tokens_and_answers() -> None:
    lines: list[Fields] = [
        {"line": 1, "loss": 2.0, "tokens": 1, "perplexity": exp(2)},
        {"line": 2, "loss": 4.0, "tokens": 5, "perplexity": exp(0.8)},
        {"line": 3, "error": "bad-row", "message": "x"},
        {"line": 4, "choice": 0, "right": True, "losses": [1.0, 2.0], "tokens": 2},
        {"line": 5, "choice": 1, "right": False, "losses": [1.0, 2.0], "tokens": 2},
    ]
    pieces = [json.dumps(line).encode() + b"\n" for line in lines]
    assert figures_of("evaluate", [b"".join(pieces[:2]), b"".join(pieces[2:])]) == {
        "tokens": 6,
        "perplexity": pytest.approx(exp(1)),
        "questions": 2,
        "accuracy": 0.5,
    }
    assert figures_of("evaluate", [pieces[2]]) == {}
    assert figures_of("unknown", pieces) == {}
    huge = json.dumps({"line": 1, "loss": 1e6, "tokens": 1, "perplexity": None}).encode()
    assert figures_of("evaluate", [huge]) == {"tokens": 1, "perplexity": None}
