"""The kind `embed`: one vector for each text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import dist
from typing import Annotated

from msgspec import Meta

from ....transport.message import Message
from ...inference.generation import GenerateRequest
from ..checking import defaults as checking
from ..spec import JobSpec
from .kind import ON_MODEL, Fields, JobStage, Merging, RowSize, RowTerms, impossible_rows
from .rows import read_output, read_row


class EmbedRow(Message, frozen=True):
    """A row: a text."""

    text: Annotated[str, Meta(min_length=1)]


class _Output(Message, frozen=True):
    """The output of a row."""

    embedding: Annotated[tuple[float, ...], Meta(max_length=2**17)]
    tokens: int


_FORMS = {"text": "a text"}


@dataclass(frozen=True, slots=True)
class Embed:
    """Kind of jobs whose rows are texts that get a vector."""

    name: str = "embed"
    stages: Sequence[JobStage] = (JobStage("encode"), JobStage("read", ON_MODEL))
    merges: Merging = "rows"

    @property
    def inputs(self) -> Mapping[str, str]:
        return _FORMS

    def read(self, line: bytes) -> EmbedRow:
        return read_row(EmbedRow, line, _FORMS)

    def size(self, row: EmbedRow, spec: JobSpec) -> RowSize:
        return RowSize(len(row.text))

    def abstract(self, row: EmbedRow) -> str:
        return row.text

    async def do(self, row: EmbedRow, terms: RowTerms) -> Fields:
        vector, tokens = await self._compute(row, terms)
        # Nine digits lose no bit of a float32.
        return {"embedding": [float(f"{value:.9g}") for value in vector], "tokens": tokens}

    async def agrees(self, row: EmbedRow, output: bytes, terms: RowTerms) -> bool:
        said = read_output(_Output, output)
        vector, tokens = await self._compute(row, terms)
        if len(said.embedding) != len(vector) or said.tokens != tokens:
            return False
        return dist(said.embedding, vector) <= checking.EMBEDDING_DISTANCE

    async def _compute(self, row: EmbedRow, terms: RowTerms) -> tuple[Sequence[float], int]:
        request = GenerateRequest(
            *(terms.spec.root, row.text),
            raw=True,
            job=terms.job,
            turn=terms.turn,
            adapter=terms.spec.adapter,
            apart=terms.apart,
        )
        with impossible_rows():
            return await terms.services.embed_one(request)

    def sum_up(self, outputs: Sequence[Fields]) -> Fields:
        return {}
