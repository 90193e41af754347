"""The kind `evaluate`: how well a model predicts texts, or chooses among answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isclose, isfinite, nan
from typing import Annotated, Final

from msgspec import Meta

from ....transport.message import Message
from .. import defaults
from ..checking import defaults as checking
from ..spec import JobSpec
from .kind import ON_MODEL, Fields, JobStage, Merging, RowSize, RowTerms, impossible_rows
from .rows import read_output, read_row

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


class _Output(Message, frozen=True):
    """The output of a row."""

    tokens: int
    loss: float = nan
    losses: Annotated[tuple[float, ...], Meta(max_length=defaults.ROW_CHOICES)] = ()
    choice: int | None = None
    right: bool | None = None
    perplexity: float | None = None


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
    stages: Sequence[JobStage] = (JobStage("encode"), JobStage("read", ON_MODEL))
    merges: Merging = "rows"

    @property
    def inputs(self) -> Mapping[str, str]:
        return _FORMS

    def read(self, line: bytes) -> EvaluateRow:
        return read_row(EvaluateRow, line, _FORMS)

    def size(self, row: EvaluateRow, spec: JobSpec) -> RowSize:
        texts = row.choices or (row.text or "",)
        return RowSize(len(texts) * len(row.prompt) + sum(map(len, texts)))

    def abstract(self, row: EvaluateRow) -> str:
        return row.text or row.prompt

    async def do(self, row: EvaluateRow, terms: RowTerms) -> Fields:
        return output_of(row, await self._losses(row, terms))

    async def agrees(self, row: EvaluateRow, output: bytes, terms: RowTerms) -> bool:
        said, found = read_output(_Output, output), await self._losses(row, terms)
        losses = (said.loss,) if row.choices is None else said.losses
        tokens = sum(count for _, count in found)
        if said.tokens != tokens or len(losses) != len(found) or not all(map(isfinite, losses)):
            return False
        pairs = list(zip(losses, found, strict=True))
        if any(abs(one - loss) > _slack(count) for one, (loss, count) in pairs):
            return False
        # The other fields are computed again from the losses that the output states.
        own = output_of(row, [(one, count) for one, (_, count) in pairs])
        given, due = said.perplexity, own.get("perplexity")
        if isinstance(given, float) and isinstance(due, float):
            due = given if isclose(given, due, rel_tol=1e-6) else due
        return (own.get("choice"), own.get("right"), due) == (said.choice, said.right, given)

    async def _losses(self, row: EvaluateRow, terms: RowTerms) -> list[tuple[float, int]]:
        found, which = [], (terms.spec.root, terms.spec.adapter, row.prompt)
        for text in row.choices or (row.text or "",):
            await terms.turn.come()
            with impossible_rows():
                found.append(await terms.services.loss(*which, text, terms.apart, terms.job))
        return found

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


def output_of(row: EvaluateRow, found: Sequence[tuple[float, int]]) -> Fields:
    """Return the output of a row from the losses of its texts and their numbers of tokens."""
    losses, tokens = [loss for loss, _ in found], sum(count for _, count in found)
    if row.choices is None:
        return {"loss": losses[0], "tokens": tokens, "perplexity": _perplexity(*found[0])}
    chosen = losses.index(min(losses))
    right = chosen == row.answer
    return {"choice": chosen, "right": right, "losses": losses, "tokens": tokens}


def _slack(tokens: int) -> float:
    """Return by how much a loss may differ, in nats."""
    return max(checking.LOSS_LEAST, checking.LOSS_NATS * tokens)


def _perplexity(loss: float, tokens: int) -> float | None:
    """Return the perplexity, or None if it has no number."""
    each = loss / tokens if tokens else 0.0
    return exp(each) if each < _MOST else None
