"""Result of a job as a claim contains it: a text, the root of a blob with a long text, or an error.

Spec: docs/spec/jobs.md.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, structs

from ...state.errors import BadFact
from ...state.views.fact import read_fields
from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.message import Message, Root, check_text, pack
from . import defaults
from .errors import BadOutcome

_CODE_BYTES = 32
_MESSAGE_BYTES = 300
_MOST_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Result of a job: either `text`, `blob` (root of a blob with the text in UTF-8) or `error` (a
    code)."""

    text: str = ""
    blob: str = ""
    size: int = 0  # size of the text in bytes
    tokens: int = 0
    reason: str = ""  # why the answer ended: `stop`, `length` or `context`
    error: str = ""
    message: str = ""


class _Told(Message, frozen=True):
    """An outcome in a claim. An outcome with an error has no other fields except the message."""

    error: str | None = None
    message: str = ""
    tokens: int = 0
    reason: str = ""
    blob: Root | None = None
    size: int | None = None
    text: Annotated[bytes, Meta(max_length=defaults.RESULT_BYTES)] | None = None

    def check(self) -> None:
        """Raise ValueError if a text is too long or a needed field is missing."""
        check_text(self.error or "", _CODE_BYTES)
        check_text(self.message, _MESSAGE_BYTES)
        check_text(self.reason, _CODE_BYTES)
        if self.error is None and (self.text if self.blob is None else self.size) is None:
            raise ValueError("expected an error, a text, or a blob with its size")


def pack_outcome(outcome: JobOutcome) -> bytes:
    """Encode an outcome as the result of a claim."""
    if outcome.error:
        return pack(_Told(error=outcome.error, message=outcome.message))
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
    try:
        told = typed(_Told, read_fields(result))
        text = (told.text or b"").decode()
    except (BadFact, Undecodable, UnicodeDecodeError):
        raise BadOutcome("the result of a job is malformed") from None
    if told.error is not None:
        return JobOutcome(error=told.error or "failed", message=told.message)
    tokens = min(max(told.tokens, 0), _MOST_TOKENS)
    if told.blob is None:
        return JobOutcome(text, size=len(told.text or b""), tokens=tokens, reason=told.reason)
    size = max(told.size or 0, 0)
    if size > defaults.RESULT_BYTES:
        raise BadOutcome("the result of a job is too large")
    return JobOutcome(blob=told.blob, size=size, tokens=tokens, reason=told.reason)
