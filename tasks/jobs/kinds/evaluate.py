"""The kind `evaluate`: how well a model predicts texts, or chooses among answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Annotated, Final

from msgspec import Meta

from ....transport.message import Message
from .. import defaults
from ..spec import JobSpec
from .kind import MODEL_STAGE, Fields, RowSize, RowTerms, Stage, impossible_rows
from .rows import read_row

_MOST: Final = 700.0  # nats a token; beyond, a perplexity has no number


class EvaluateRow(Message, frozen=True):
    """A row: a `text`, which may have a `prompt` before it; or a `prompt` and `choices`, of which
    the one with the number `answer` (from 0) is right."""

    text: Annotated[str, Meta(min_length=1)] | None = None
    prompt: str = ""
    choices: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1)], ...],
            Meta(min_length=2, max_length=defaults.ROW_CHOICES),
        ]
        | None
    ) = None
    answer: Annotated[int, Meta(ge=0)] | None = None

    def check(self) -> None:
        """Raise ValueError unless the row has a text, or choices with their answer."""
        if (self.text is None) == (self.choices is None):
            raise ValueError("expected either `text` or `choices`")
        if self.choices is None:
            if self.answer is not None:
                raise ValueError("`answer` belongs to `choices`")
        elif self.answer is None or self.answer >= len(self.choices):
            raise ValueError("expected in `answer` the number of the right choice, from 0 on")
        elif not self.prompt:
            raise ValueError("expected a `prompt` before the choices")


_FORMS = {
    "text": "a text",
    "prompt": "a text",
    "choices": f"a list of 2 to {defaults.ROW_CHOICES} texts, none of them empty",
    "answer": "a whole number from 0 on",
}


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Kind of jobs whose rows are texts to predict, or questions with choices."""

    name: str = "evaluate"
    stages: Sequence[Stage] = (Stage("evaluate", MODEL_STAGE),)

    def read(self, line: bytes) -> EvaluateRow:
        return read_row(EvaluateRow, line, _FORMS)

    def size(self, row: EvaluateRow, spec: JobSpec) -> RowSize:
        texts = row.choices or (row.text or "",)
        return RowSize(len(texts) * len(row.prompt) + sum(map(len, texts)))

    def abstract(self, row: EvaluateRow) -> str:
        return row.text or row.prompt

    async def do(self, row: EvaluateRow, terms: RowTerms) -> Fields:
        found, which = [], (terms.spec.root, terms.spec.adapter)
        for text in row.choices or (row.text or "",):
            await terms.turn.come()
            with impossible_rows():
                found.append(await terms.services.loss(*which, row.prompt, text))
        losses, tokens = [loss for loss, _ in found], sum(count for _, count in found)
        if row.choices is None:
            return {"loss": losses[0], "tokens": tokens, "perplexity": _perplexity(*found[0])}
        chosen = losses.index(min(losses))
        right = chosen == row.answer
        return {"choice": chosen, "right": right, "losses": losses, "tokens": tokens}

    def sum_up(self, outputs: Sequence[Fields]) -> Fields:
        texts = [(each["loss"], each["tokens"]) for each in outputs if "loss" in each]
        asked = [each["right"] for each in outputs if "right" in each]
        found: Fields = {}
        if texts:
            loss = sum(float(loss) for loss, _ in texts if isinstance(loss, float))
            tokens = sum(count for _, count in texts if isinstance(count, int))
            found |= {"tokens": tokens, "perplexity": _perplexity(loss, tokens)}
        if asked:
            found |= {"questions": len(asked), "accuracy": sum(map(bool, asked)) / len(asked)}
        return found


def _perplexity(loss: float, tokens: int) -> float | None:
    """Return the perplexity, or None if it has no number."""
    each = loss / tokens if tokens else 0.0
    return exp(each) if each < _MOST else None
