"""Result of a job as stated in a claim: its text, the blob with a long text, or an error.

Spec: docs/spec/jobs.md.
"""

from dataclasses import dataclass, replace
from typing import Any

import msgpack

from ...state.errors import BadFact
from ...state.views.fact import read_bytes, read_fields, read_root, read_text, read_whole
from . import defaults
from .errors import BadOutcome

_CODE_BYTES = 32
_MESSAGE_BYTES = 300
_MOST_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class Outcome:
    """Either `text`, or `blob` (root of the text's UTF-8 bytes) or `error` (a code)."""

    text: str = ""
    blob: str = ""
    size: int = 0  # bytes of the text
    tokens: int = 0
    reason: str = ""  # `stop`, `length`
    error: str = ""
    message: str = ""


def pack_outcome(outcome: Outcome) -> bytes:
    """Encode an outcome as the result of a claim."""
    if outcome.error:
        fields: dict[str, Any] = {"error": outcome.error, "message": outcome.message}
    else:
        fields = {"tokens": outcome.tokens, "reason": outcome.reason}
        if outcome.blob:
            fields |= {"blob": outcome.blob, "size": outcome.size}
        else:
            fields["text"] = outcome.text.encode(errors="replace")
    packed: bytes = msgpack.packb(fields)
    return packed


def failed(code: str, message: str) -> Outcome:
    """Create an error outcome, truncated to the limits of a claim."""
    shown = "".join(c if c.isprintable() else " " for c in message)
    cut = shown.encode(errors="replace")[:_MESSAGE_BYTES].decode(errors="ignore")
    return Outcome(error=code[:_CODE_BYTES] or "failed", message=cut)


def read_outcome(result: bytes) -> Outcome:
    """Decode the result of another node's claim. Raises BadOutcome."""
    try:
        return _read(read_fields(result))
    except (BadFact, UnicodeDecodeError):
        raise BadOutcome("the result of a job is malformed") from None


def _read(fields: Any) -> Outcome:
    if "error" in fields:
        code = read_text(fields["error"], _CODE_BYTES)
        return Outcome(
            error=code or "failed", message=read_text(fields.get("message", ""), _MESSAGE_BYTES)
        )
    said = Outcome(
        tokens=read_whole(fields.get("tokens", 0), _MOST_TOKENS),
        reason=read_text(fields.get("reason", ""), _CODE_BYTES),
    )
    if "blob" in fields:
        size = read_whole(fields.get("size"), defaults.RESULT_BYTES + 1)
        if size > defaults.RESULT_BYTES:
            raise BadOutcome("the result of a job is too large")
        return replace(said, blob=read_root(fields["blob"]), size=size)
    text = read_bytes(fields.get("text"), defaults.RESULT_BYTES)
    return replace(said, text=text.decode(), size=len(text))
