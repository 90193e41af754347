"""The kind `embed`: one vector for each text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ....transport.message import Message
from ...inference.generation import GenerateRequest
from ..spec import JobSpec
from .kind import MODEL_STAGE, Fields, RowSize, RowTerms, Stage, impossible_rows
from .rows import read_row


class EmbedRow(Message, frozen=True):
    """A row: a text."""

    text: Annotated[str, Meta(min_length=1)]


_FORMS = {"text": "a text"}


@dataclass(frozen=True, slots=True)
class Embed:
    """Kind of jobs whose rows are texts that get a vector."""

    name: str = "embed"
    stages: Sequence[Stage] = (Stage("embed", MODEL_STAGE),)

    def read(self, line: bytes) -> EmbedRow:
        return read_row(EmbedRow, line, _FORMS)

    def size(self, row: EmbedRow, spec: JobSpec) -> RowSize:
        return RowSize(len(row.text))

    def abstract(self, row: EmbedRow) -> str:
        return row.text

    async def do(self, row: EmbedRow, terms: RowTerms) -> Fields:
        spec = terms.spec
        request = GenerateRequest(
            spec.root, row.text, raw=True, job=terms.job, turn=terms.turn, adapter=spec.adapter
        )
        with impossible_rows():
            vector, tokens = await terms.services.embed_one(request)
        # Nine digits lose no bit of a float32.
        return {"embedding": [float(f"{value:.9g}") for value in vector], "tokens": tokens}

    def sum_up(self, outputs: Sequence[Fields]) -> Fields:
        return {}
