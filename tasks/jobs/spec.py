"""Specs of jobs: the model, the options and the rows of one piece.

Specs come from untrusted peers, so they are bounded and checked before any work. The rows of a
piece are lines of JSON. They are in the spec if all rows of the job fit there, else in a blob.
Spec: docs/spec/jobs.md.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from ...state import defaults as state_defaults
from ...state.errors import BadFact
from ...state.views.fields import read_fields
from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.message import Message as Declared
from ...transport.message import Natural, Root, Row, check_text, pack
from ..defaults import STOP_STRING_CHARACTERS, STOP_STRINGS
from ..engine.interface import Sampled, Sampling
from . import defaults
from .errors import BadSpec

BOX_BYTES: Final = 32  # of an X25519 key
MARK_BYTES: Final = 8  # of a secret of a group
NAME_BYTES = 128
_ROOT_FIRST = re.compile(
    rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa4root\xd9\x40([0-9a-f]{64})", re.DOTALL
)
"""Pattern for the beginning of every spec: a msgpack map whose first field is the model's root."""
_SEAL_NEXT = re.compile(rb"\xa4seal\x93\xc4\x20(.{32})(?:\xc4\x00|\xc4\x08(.{8}))", re.DOTALL)
"""Pattern for the second field of the spec of a sealed job."""


class SpecSeal(Row, frozen=True):
    """The seal of a job: `box` is the author's key for the outputs. If the inputs are sealed too,
    `mark` names the secret of the group, and `hidden` has the fields of the spec that only its
    members can read."""

    box: Annotated[bytes, Meta(min_length=BOX_BYTES, max_length=BOX_BYTES)]
    mark: Annotated[bytes, Meta(max_length=MARK_BYTES)] = b""
    hidden: Annotated[bytes, Meta(max_length=state_defaults.JOB_SPEC_BYTES)] = b""

    def check(self) -> None:
        """Raise ValueError if only a part of what sealed inputs need is there."""
        if len(self.mark) not in (0, MARK_BYTES) or bool(self.mark) != bool(self.hidden):
            raise ValueError("a seal has a secret without a text, or a text without a secret")


class BlobPart(Row, frozen=True):
    """The bytes `start` to `stop` - 1 of a blob with all rows of a job, which has `size` bytes."""

    root: Root
    size: Annotated[int, Meta(ge=1, le=defaults.INPUT_BYTES)]
    start: Natural
    stop: Natural

    def check(self) -> None:
        """Raise ValueError if the part is not in the blob or is too large."""
        if not self.start < self.stop <= self.size:
            raise ValueError("the part of a blob is not in the blob")
        if self.stop - self.start > defaults.PIECE_BYTES:
            raise ValueError(f"a piece has at most {defaults.PIECE_BYTES} bytes of rows")


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options of all rows of a job. `max_tokens` bounds the tokens to generate for one row."""

    raw: bool = False
    max_tokens: int = defaults.ROW_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The request of a piece of a job.

    `root` identifies the model, and `adapter` the adapter that the rows use, or is ""; `name` is
    what the author calls them. The rows are in `lines` or in
    `blob`. The first of them is line number `first` of the author's file, and they end before line
    `last` + 1. `abstract` is the beginning of the first row's text, for people.
    """

    root: str
    lines: bytes = b""
    blob: BlobPart | None = None
    first: int = 1
    last: int = 1
    name: str = ""
    abstract: str = ""
    options: RowOptions = field(default_factory=RowOptions)
    adapter: str = ""
    seal: SpecSeal | None = None


class _Spec(Declared, frozen=True):
    """Encoding of a spec. The root must come first and the seal second, because `root_of` and
    `seal_of` read only the beginning."""

    root: Root
    seal: SpecSeal | None = None
    lines: Annotated[bytes, Meta(max_length=state_defaults.JOB_SPEC_BYTES)] = b""
    blob: BlobPart | None = None
    first: Annotated[int, Meta(ge=1, le=2**32)] = 1
    last: Annotated[int, Meta(ge=1, le=2**32)] = 1
    name: str = ""
    abstract: Annotated[bytes, Meta(max_length=4 * defaults.ABSTRACT)] = b""
    tokens: int = defaults.ROW_TOKENS
    raw: bool = False
    stop: Annotated[tuple[bytes, ...], Meta(max_length=STOP_STRINGS)] = ()
    sampling: Sampled = Sampling()
    adapter: Root | None = None

    def check(self) -> None:
        """Raise ValueError if the values contradict each other or exceed a limit."""
        check_text(self.name, NAME_BYTES)
        if self.blob is not None:
            self.blob.check()
        hides = False
        if self.seal is not None:
            self.seal.check()
            hides = bool(self.seal.hidden)
        if hides and (self.lines or self.stop or self.name or self.abstract):
            raise ValueError("a spec shows what it also seals")
        if not hides and bool(self.lines) == (self.blob is not None):
            raise ValueError("expected either rows or a blob with rows")
        if self.last < self.first:
            raise ValueError("the last line comes before the first")
        check_stop(self.stop)


def check_stop(stop: Iterable[bytes]) -> None:
    """Raise ValueError if a stop string is empty, too long or not UTF-8."""
    if not all(0 < len(text.decode()) <= STOP_STRING_CHARACTERS for text in stop):
        raise ValueError(f"expected stop strings of 1 to {STOP_STRING_CHARACTERS} characters")


def pack_spec(spec: JobSpec) -> bytes:
    """Encode a spec. Raises BadSpec if it has too many bytes for a feed."""
    options = spec.options
    declared = _Spec(
        root=spec.root,
        seal=spec.seal,
        lines=spec.lines,
        blob=spec.blob,
        first=spec.first,
        last=spec.last,
        name=spec.name,
        abstract=spec.abstract.encode(),
        tokens=options.max_tokens,
        raw=options.raw,
        stop=tuple(text.encode() for text in options.stop),
        sampling=options.sampling,
        adapter=spec.adapter or None,
    )
    packed = pack(declared)
    if len(packed) > state_defaults.JOB_SPEC_BYTES:
        most = state_defaults.JOB_SPEC_BYTES
        raise BadSpec(f"the spec of a job has at most {most} bytes, this one {len(packed)}")
    return packed


def root_of(data: bytes) -> str:
    """Return the root of the model from the first bytes of a spec.

    Decoding a whole malicious spec can take a millisecond, and 1,024 specs are checked without a
    pause. Raises BadSpec if the spec does not begin with a root.
    """
    found = _ROOT_FIRST.match(data)
    if found is None:
        raise BadSpec("invalid job: it does not begin with the root of a model")
    return found[1].decode()


class SealKeys(NamedTuple):
    """The keys of a sealed job: `box` as in `SpecSeal`, and `mark`, or b"" if its inputs are not
    sealed."""

    box: bytes
    mark: bytes


def seal_of(data: bytes) -> SealKeys | None:
    """Return the keys of a sealed job from the first bytes of its spec, or None if it is not
    sealed or no valid spec."""
    root = _ROOT_FIRST.match(data)
    found = None if root is None else _SEAL_NEXT.match(data, root.end())
    return None if found is None else SealKeys(found[1], found[2] or b"")


def read_spec(data: bytes) -> JobSpec:
    """Decode the spec of another node's job. Raises BadSpec if it is invalid."""
    root_of(data)  # keys cannot repeat, so the root that is decoded below is the same
    try:
        said = typed(_Spec, read_fields(data))
        if (said.seal is None) != (seal_of(data) is None):
            raise BadSpec("invalid job: its seal is not behind the root")
        return JobSpec(
            root=said.root,
            seal=said.seal,
            lines=said.lines,
            blob=said.blob,
            first=said.first,
            last=said.last,
            name=said.name,
            abstract=said.abstract.decode()[: defaults.ABSTRACT],
            options=RowOptions(
                raw=said.raw,
                max_tokens=min(max(said.tokens, 1), defaults.ROW_TOKENS),
                sampling=Sampling(*said.sampling),
                stop=tuple(text.decode() for text in said.stop),
            ),
            adapter=said.adapter or "",
        )
    except (BadFact, Undecodable, UnicodeDecodeError) as error:
        raise BadSpec(f"invalid job: {error}") from None
