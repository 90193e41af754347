"""Results of jobs: in the claims of workers, and on the disk of the node that submitted the jobs.

A claim contains a text, the root of a blob with a long text, or an error. The node that submitted
the job stores the result in a file until the owner has read it. A job is removed from the feed only
after its result is stored. Spec: docs/spec/jobs.md.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, structs

from ...state.defaults import CLAIM_SAVED_BYTES
from ...state.errors import BadFact
from ...state.views.fields import read_fields
from ...transport.decoding import decode, read, typed
from ...transport.errors import Undecodable
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.message import Message, Natural, Root, check_text, pack
from . import defaults
from .errors import BadOutcome, JobError

_CODE_BYTES = 32
_MESSAGE_BYTES = 300
_MOST_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a job: either `text`, `blob` (root of a blob with the text in UTF-8), `error` (a
    code), or `sealed`: an outcome that only the job's author can read. A blob of a sealed job has
    such an outcome, too."""

    text: str = ""
    blob: str = ""
    size: int = 0  # size of the text in bytes
    tokens: int = 0
    reason: str = ""  # why the answer ended: `stop`, `length` or `context`
    error: str = ""
    message: str = ""
    sealed: bytes = b""


class SavedWork(NamedTuple):
    """The blob with the unfinished work of a claim: its root and its bytes."""

    root: str
    size: int

    def packed(self) -> bytes:
        """Return the `saved` of a claim."""
        return bytes.fromhex(self.root) + self.size.to_bytes(8)

    @classmethod
    def read(cls, data: bytes, most: int) -> "SavedWork":
        """Decode the `saved` of another node's claim. Raises BadOutcome if it names no blob of at
        most `most` bytes."""
        size = int.from_bytes(data[32:])
        if len(data) != CLAIM_SAVED_BYTES or not 0 < size <= most:
            raise BadOutcome(f"a claim names no blob of at most {most} bytes")
        return cls(data[:32].hex(), size)


class _Told(Message, frozen=True):
    """An outcome in a claim. An outcome with an error has no other fields except the message."""

    error: str | None = None
    message: str = ""
    tokens: int = 0
    reason: str = ""
    blob: Root | None = None
    size: int | None = None
    text: Annotated[bytes, Meta(max_length=defaults.RESULT_BYTES)] | None = None
    sealed: Annotated[bytes, Meta(max_length=defaults.INLINE_BYTES)] = b""

    def check(self) -> None:
        """Raise ValueError if a text is too long or a needed field is missing."""
        check_text(self.error or "", _CODE_BYTES)
        check_text(self.message, _MESSAGE_BYTES)
        check_text(self.reason, _CODE_BYTES)
        has_any = self.sealed or (self.text if self.blob is None else self.size) is not None
        if self.error is None and not has_any:
            raise ValueError("expected an error, a text, or a blob with its size")


def pack_outcome(outcome: JobOutcome) -> bytes:
    """Encode an outcome as the result of a claim."""
    if outcome.error:
        return pack(_Told(error=outcome.error, message=outcome.message))
    if outcome.sealed:
        return pack(_Told(sealed=outcome.sealed))
    told = _Told(tokens=outcome.tokens, reason=outcome.reason)
    if outcome.blob:
        return pack(structs.replace(told, blob=outcome.blob, size=outcome.size))
    return pack(structs.replace(told, text=outcome.text.encode(errors="replace")))


def failed(code: str, message: str) -> JobOutcome:
    """Create an outcome with an error. Code and message are truncated to the limits of a claim."""
    shown = "".join(c if c.isprintable() else " " for c in message)
    cut = shown.encode(errors="replace")[:_MESSAGE_BYTES].decode(errors="ignore")
    return JobOutcome(error=code[:_CODE_BYTES] or "failed", message=cut)


def read_outcome(result: bytes) -> JobOutcome:
    """Decode the result in another node's claim. Raises BadOutcome if it is invalid or too
    large."""
    with _malformed():
        return _outcome(read_fields(result))


def read_long_outcome(data: bytes) -> JobOutcome:
    """Decode an outcome that was sealed. Raises the errors of `read_outcome`."""
    with _malformed():
        return _outcome(decode(data, limit=defaults.RESULT_BYTES, once=True))


@contextmanager
def _malformed() -> Iterator[None]:
    try:
        yield
    except (BadFact, Undecodable, UnicodeDecodeError):
        raise BadOutcome("the result of a job is malformed") from None


def _outcome(fields: object) -> JobOutcome:
    told = typed(_Told, fields)
    text = (told.text or b"").decode()
    if told.error is not None:
        return JobOutcome(error=told.error or "failed", message=told.message)
    if told.sealed:
        return JobOutcome(sealed=told.sealed)
    tokens = min(max(told.tokens, 0), _MOST_TOKENS)
    if told.blob is None:
        return JobOutcome(text, size=len(told.text or b""), tokens=tokens, reason=told.reason)
    size = max(told.size or 0, 0)
    if size > defaults.RESULT_BYTES:
        raise BadOutcome("the result of a job is too large")
    return JobOutcome(blob=told.blob, size=size, tokens=tokens, reason=told.reason)


_ID = re.compile(r"[0-9a-f]{64}")
_FILE_BYTES = defaults.RESULT_BYTES + 64 * 2**10
_WORD_BYTES = 1024  # the most bytes of each short text
_NEVER = 0.0
_Time = Annotated[float, Meta(ge=0.0, le=1e12)]  # seconds since 1970


@dataclass(frozen=True, slots=True)
class StoredResult:
    """Result of one job. The text is loaded only on demand.

    `came` and `read` are Unix times in seconds; a `read` of 0 means that the result is unread.
    """

    job: str
    kind: str
    model: str  # the name that its author gave, or its root
    abstract: str  # the beginning of the prompt
    claimant: PeerId
    attempt: int
    outcome: JobOutcome
    came: float
    read: float = _NEVER
    made: int = 0  # submission time of the job in microseconds; 0: unknown
    prompt: str = ""  # the whole prompt, which like the text is not held in memory
    whole: str = ""  # the job, if this is the result of one of several pieces
    part: int = 0
    parts: int = 1
    rows: int = 1
    failed_rows: int = 0
    checked_rows: int = 0  # that other nodes have recomputed, with the same output

    @property
    def of(self) -> str:
        """Id of the job that this is the result of, or of a piece of."""
        return self.whole or self.job


class Results:
    """Results stored in `folder`. `open` must be called first."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._held: dict[str, StoredResult] = {}  # without their texts
        self._pieces: dict[str, set[str]] = {}  # ids of results by the job that they belong to

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[StoredResult]:
        return iter(self._held.values())

    def __contains__(self, job: str) -> bool:
        return job in self._held

    def about(self, job: str) -> StoredResult | None:
        """Return a result without its text, or None if there is none."""
        return self._held.get(job)

    @property
    def unread(self) -> int:
        """Number of results that the owner has not read."""
        return sum(result.read == _NEVER for result in self)

    async def open(self) -> None:
        """Load the results of earlier runs, ignoring other files. Raises OSError if the folder is
        unreadable."""
        self._held = await self._host.offload(self._open)
        for result in self._held.values():
            self._pieces.setdefault(result.of, set()).add(result.job)

    async def put(self, result: StoredResult) -> None:
        """Store a result on disk. Raises OSError if that fails."""
        await self._host.offload(self._write, result)
        self._held[result.job] = _light(result)
        self._pieces.setdefault(result.of, set()).add(result.job)

    def pieces_of(self, job: str) -> list[StoredResult]:
        """Return the results of all pieces of a job, in their order, without their texts."""
        found = [self._held[piece] for piece in sorted(self._pieces.get(job, ()))]
        return sorted(found, key=lambda result: result.part)

    async def take(self, job: str) -> StoredResult | None:
        """Return a result with its text and mark it as read. Return None if there is no such
        result."""
        if job not in self._held:
            return None
        found = await self._host.offload(self._read, job)
        if found is not None and found.read == _NEVER:
            with suppress(OSError):  # the result then stays unread
                await self.put(replace(found, read=max(self._host.wall(), 1.0)))
        return found

    async def drop(self, job: str) -> bool:
        """Delete a result. Return whether it existed. Raises JobError `disk` if that fails."""
        try:
            await self._host.offload(self._host.files.remove, self._folder / job)
        except OSError as error:
            reason = error.strerror or str(error)
            raise JobError("disk", f"cannot remove `{self._folder / job}`: {reason}") from None
        result = self._held.pop(job, None)
        if result is not None and (pieces := self._pieces.get(result.of)) is not None:
            pieces.discard(job)
            if not pieces:
                del self._pieces[result.of]
        return result is not None

    async def tidy(self) -> None:
        """Delete results that were read a day ago, and unread ones that arrived 30 days ago.

        Raises JobError `disk` if a result cannot be deleted.
        """
        now = self._host.wall()
        for result in list(self):
            since, most = result.read, defaults.RESULT_READ_KEPT
            if since == _NEVER:
                since, most = result.came, defaults.RESULT_KEPT
            if now - since >= most:
                await self.drop(result.job)

    def _open(self) -> dict[str, StoredResult]:
        files = self._host.files
        found: dict[str, StoredResult] = {}
        for entry in files.list(self._folder):
            if _ID.fullmatch(entry.name) and (result := self._read(entry.name)) is not None:
                found[entry.name] = _light(result)
        return found

    def _read(self, job: str) -> StoredResult | None:
        """Return a result from its file, or None if the file is unreadable or damaged."""
        try:
            data = self._host.files.read(self._folder / job, limit=_FILE_BYTES)
            return _unpacked(job, read(_File, data, limit=_FILE_BYTES))
        except (OSError, Undecodable, UnicodeDecodeError):
            return None

    def _write(self, result: StoredResult) -> None:
        self._host.files.make_folder(self._folder)
        self._host.files.write(self._folder / result.job, _packed(result))


def _light(result: StoredResult) -> StoredResult:
    """Return the result without its texts, as it is held in memory."""
    return replace(result, prompt="", outcome=replace(result.outcome, text=""))


class _File(Message, frozen=True):
    """Encoding of a result on disk. Texts of other nodes are bytes, because they may be of any
    content."""

    kind: str
    model: bytes
    abstract: bytes
    claimant: str
    attempt: Natural
    came: _Time
    read: _Time
    text: Annotated[bytes, Meta(max_length=defaults.RESULT_BYTES)]
    tokens: Natural
    reason: str
    error: str
    message: str
    made: Natural = 0
    prompt: bytes = b""
    whole: str = ""
    part: Natural = 0
    parts: Natural = 1
    rows: Natural = 1
    failed_rows: Natural = 0
    checked_rows: Natural = 0

    def check(self) -> None:
        """Raise ValueError if a short text is too long."""
        for text in (
            *(self.kind, self.claimant, self.reason, self.error, self.message, self.whole),
        ):
            check_text(text, _WORD_BYTES)


def _packed(result: StoredResult) -> bytes:
    came = result.outcome
    return pack(
        _File(
            kind=result.kind,
            model=result.model.encode(),
            abstract=result.abstract.encode(),
            claimant=result.claimant,
            attempt=result.attempt,
            came=result.came,
            read=result.read,
            text=came.text.encode(),
            tokens=came.tokens,
            reason=came.reason,
            error=came.error,
            message=came.message,
            made=result.made,
            prompt=result.prompt.encode(),
            whole=result.whole,
            part=result.part,
            parts=result.parts,
            rows=result.rows,
            failed_rows=result.failed_rows,
            checked_rows=result.checked_rows,
        )
    )


def _unpacked(job: str, file: _File) -> StoredResult:
    return StoredResult(
        job=job,
        kind=file.kind,
        model=file.model.decode(),
        abstract=file.abstract.decode(),
        claimant=PeerId(file.claimant),
        attempt=file.attempt,
        came=file.came,
        read=file.read,
        made=file.made,
        prompt=file.prompt.decode(),
        whole=file.whole,
        part=file.part,
        parts=file.parts,
        rows=file.rows,
        failed_rows=file.failed_rows,
        checked_rows=file.checked_rows,
        outcome=JobOutcome(
            text=file.text.decode(),
            size=len(file.text),
            tokens=file.tokens,
            reason=file.reason,
            error=file.error,
            message=file.message,
        ),
    )
