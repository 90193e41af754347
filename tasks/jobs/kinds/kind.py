"""Interface of all kinds of jobs.

Each kind declares its inputs, its stages, the resources of each stage, and how the pieces of a job
are merged (`Declared`). It never runs code that came from a peer: a row is data, and the work is
one of the requests that this node answers for its own user too.

A job is divided into runs of rows that follow each other (`submitting.py`), and their outputs are
merged in the order of the rows. Only a fine-tuning is one piece (`tasks/tuning/moving/`).
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from ...errors import SessionError, TextError
from ...inference.conversation.recomputing import Recomputed, Ties
from ...inference.generation import Apart, GatewayEvent, GenerateRequest, Summary, Turn
from ..errors import JobError
from ..spec import JobSpec

T = TypeVar("T")
Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"
Fields: TypeAlias = dict[str, Value]
"""The output of a row, as the fields of a JSON object."""
Resource = Literal["model", "place"]
"""Resource of a stage: `model` is a chain of nodes that serves the job's model, `place` one of this
node's places for trainers, with memory for the optimiser."""


class BadRow(JobError):
    """A row of a job's input is malformed. The other rows are done."""

    def __init__(self, message: str, code: str = "bad-row") -> None:
        super().__init__(code, message)


Merging = Literal["rows", "whole"]
"""How pieces merge: `rows` says that their outputs are joined in the order of the rows, and `whole`
that a job is one piece."""


@dataclass(frozen=True, slots=True)
class JobStage:
    """A stage of the work on a job, and the resources that it needs: none if any node can do it.

    Different nodes may have the resources: those of `model` may be graphics cards elsewhere.
    """

    name: str
    needs: frozenset[Resource] = frozenset()


class Declared(Protocol):
    """What every kind declares."""

    @property
    def name(self) -> str:
        """The word for this kind in specs and commands."""
        ...

    @property
    def inputs(self) -> Mapping[str, str]:
        """The fields of a row, and what each must be."""
        ...

    @property
    def stages(self) -> Sequence[JobStage]:
        """The stages, one after the other."""
        ...

    @property
    def merges(self) -> Merging:
        """How pieces merge."""
        ...


def is_able(kind: Declared, offers: Mapping[Resource, Callable[[], bool]]) -> bool:
    """Return whether all resources that the stages of a kind need are offered now."""
    needs = dict.fromkeys(need for stage in kind.stages for need in sorted(stage.needs))
    return all(need in offers and offers[need]() for need in needs)


@dataclass(frozen=True, slots=True)
class RowSize:
    """How much work a row is: characters that are read, and the most tokens that are generated."""

    characters: int
    tokens: int = 0


class Services(Protocol):
    """Interface of a node, limited to the needs of rows."""

    async def generate(
        self, request: GenerateRequest, emit: Callable[[GatewayEvent], Awaitable[None]]
    ) -> Summary: ...

    async def recompute(
        self, request: GenerateRequest, tokens: Sequence[int], ties: Ties
    ) -> Recomputed: ...

    async def embed_one(self, request: GenerateRequest) -> tuple[Sequence[float], int]: ...

    async def loss(
        self, root: str, adapter: str, given: str, text: str, apart: Apart | None, job: str
    ) -> tuple[float, int]: ...


@dataclass(frozen=True, slots=True)
class RowTerms:
    """The circumstances in which a row is done: its job, and when the job may compute. A row that
    is checked is computed `apart` from the node that did it. `opened` is to be called when the
    row's chain is open; the next row may begin then."""

    job: str
    spec: JobSpec
    turn: Turn
    services: Services
    apart: Apart | None = None
    opened: Callable[[], None] = lambda: None


class Kind(Declared, Protocol, Generic[T]):
    """A kind of jobs whose pieces are rows. `T` is a row, decoded and checked."""

    def read(self, line: bytes) -> T:
        """Decode a row. Raises BadRow if it is malformed."""
        ...

    def size(self, row: T, spec: JobSpec) -> RowSize:
        """Return how much work a row is. Raises BadRow if it exceeds what its job allows."""
        ...

    def abstract(self, row: T) -> str:
        """Return the text of a row by which a person recognises it."""
        ...

    async def do(self, row: T, terms: RowTerms) -> Fields:
        """Do a row and return the fields of its output.

        Raises BadRow if the row cannot be done anywhere, and ShoalError if a later try or another
        node might succeed.
        """
        ...

    async def agrees(self, row: T, output: bytes, terms: RowTerms) -> bool:
        """Return whether a row has this output, which another node has computed: its line, without
        an error.

        Raises the errors of `do`, and BadOutcome if the output is malformed.
        """
        ...

    def sum_up(self, outputs: Sequence[Fields]) -> Fields:
        """Return figures on all outputs that are no errors, or {}."""
        ...


ON_MODEL: Final = frozenset[Resource]({"model"})
_OWN_FAULTS: Final = ("bad-request", "prompt-too-long")
"""Codes of sessions that say that the row itself is impossible."""


def tokens_of(output: Fields) -> int:
    """Return the number of tokens in the output of a row, 0 if it has none."""
    tokens = output.get("tokens")
    return tokens if isinstance(tokens, int) else 0


@contextmanager
def impossible_rows() -> Iterator[None]:
    """Raise BadRow in place of an error that says that the row itself is impossible."""
    try:
        yield
    except SessionError as error:
        if error.code not in _OWN_FAULTS:
            raise
        raise BadRow(error.message, error.code) from None
    except TextError as error:
        raise BadRow(error.message, error.code) from None
