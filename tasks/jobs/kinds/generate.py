"""The kind `generate`: a model continues prompts or answers conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ....transport.message import Message
from ...inference.conversation.recomputing import Ties
from ...inference.generation import GatewayEvent, GenerateRequest
from ...text.process import ChatTurn
from .. import defaults
from ..checking import defaults as checking
from ..checking.fingerprint import FIELD, pack_fingerprint, read_fingerprint
from ..spec import JobSpec
from .kind import (
    ON_MODEL,
    BadRow,
    Fields,
    JobStage,
    Merging,
    RowSize,
    RowTerms,
    impossible_rows,
    tokens_of,
)
from .rows import read_output, read_row


class _Said(Message, frozen=True):
    """A message of a conversation."""

    role: Annotated[str, Meta(min_length=1, max_length=32)]
    content: str


class GenerateRow(Message, frozen=True):
    """A row: `prompt` or `messages`. `max_tokens` (at most the job's) and `seed` replace the
    job's."""

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: (
        Annotated[tuple[_Said, ...], Meta(min_length=1, max_length=defaults.ROW_MESSAGES)] | None
    ) = None
    max_tokens: Annotated[int, Meta(ge=1, le=defaults.ROW_TOKENS)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**62)] | None = None

    def check(self) -> None:
        """Raise ValueError unless the row has either a prompt or messages."""
        if self.prompt is None and self.messages is None:
            raise ValueError("it has neither `prompt` nor `messages`")
        if self.prompt is not None and self.messages is not None:
            raise ValueError("it has both `prompt` and `messages`; one is expected")


class _Output(Message, frozen=True):
    """The output of a row."""

    text: str
    tokens: int
    reason: Annotated[str, Meta(max_length=16)]
    fingerprint: str = ""


_FORMS = {
    "prompt": "a text",
    "messages": f"a list of 1 to {defaults.ROW_MESSAGES} messages, each with `role` and `content`",
    "max_tokens": f"a whole number from 1 to {defaults.ROW_TOKENS}",
    "seed": "a whole number from 0 to 2**62",
}


@dataclass(frozen=True, slots=True)
class Generate:
    """Kind of jobs whose rows are prompts or conversations."""

    name: str = "generate"
    stages: Sequence[JobStage] = (JobStage("encode"), JobStage("generate", ON_MODEL))
    merges: Merging = "rows"

    @property
    def inputs(self) -> Mapping[str, str]:
        return _FORMS

    def read(self, line: bytes) -> GenerateRow:
        return read_row(GenerateRow, line, _FORMS)

    def size(self, row: GenerateRow, spec: JobSpec) -> RowSize:
        said = row.messages or ()
        characters = len(row.prompt or "") + sum(len(each.content) for each in said)
        return RowSize(characters, _max_tokens(row, spec))

    def abstract(self, row: GenerateRow) -> str:
        return (row.messages[-1].content if row.messages else row.prompt) or ""

    async def do(self, row: GenerateRow, terms: RowTerms) -> Fields:
        request = self._request(row, terms)

        async def emit(_event: GatewayEvent) -> None:
            terms.opened()  # the first event is the chain

        with impossible_rows():
            done = await terms.services.generate(request, emit)
        fingerprint = pack_fingerprint(done.token_ids, done.logprobs)
        return {
            "text": done.text,
            "tokens": done.tokens,
            "reason": done.reason,
            FIELD: fingerprint,
        }

    async def agrees(self, row: GenerateRow, output: bytes, terms: RowTerms) -> bool:
        said = read_output(_Output, output)
        request = self._request(row, terms)
        known = read_fingerprint(said.fingerprint, request.max_tokens or 0)
        most = max(checking.TIES_LEAST, int(checking.TIES_SHARE * len(known.tokens)))
        with impossible_rows():
            found = await terms.services.recompute(
                request, known.tokens, Ties(checking.TIE_NATS, most)
            )
        return (
            found.whole
            and (found.text, found.reason) == (said.text, said.reason)
            and said.tokens == len(known.tokens)
            and known.distance(found.logprobs) <= checking.MARK_NATS
        )

    def _request(self, row: GenerateRow, terms: RowTerms) -> GenerateRequest:
        options, said = terms.spec.options, row.messages
        sampling = options.sampling
        if row.seed is not None:
            sampling = sampling._replace(seed=row.seed)
        return GenerateRequest(
            model=terms.spec.root,
            prompt=row.prompt,
            messages=None if said is None else tuple(ChatTurn(m.role, m.content) for m in said),
            raw=options.raw,
            max_tokens=_max_tokens(row, terms.spec),
            sampling=sampling,
            stop=options.stop,
            job=terms.job,
            turn=terms.turn,
            adapter=terms.spec.adapter,
            apart=terms.apart,
        )

    def sum_up(self, outputs: Sequence[Fields]) -> Fields:
        return {"tokens": sum(map(tokens_of, outputs))}


def _max_tokens(row: GenerateRow, spec: JobSpec) -> int:
    """Return the most tokens to generate for a row.

    Raises BadRow if the row asks for more than its job, by whose number its author is charged.
    """
    most = spec.options.max_tokens
    if row.max_tokens is not None and row.max_tokens > most:
        raise BadRow(f"`max_tokens` is {row.max_tokens}, the job's is {most}")
    return row.max_tokens or most
