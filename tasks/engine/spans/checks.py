"""Checks of spans before they are queued. No I/O."""

from ..defaults import ANSWER_BYTES, WAITING_SPANS, WINDOW_ROWS
from ..errors import EngineError
from ..families import DTYPE_BYTES
from ..interface import Span
from ..session import Session
from ..shard import Compute


def check(session: Session, span: Span) -> None:
    """Check whatever can be checked without computing. Raises EngineError if the span must be
    refused."""
    model = session.shard.compute
    parts = model.parts
    _check_input(session, span, model)
    if span.draft:
        _check_window(span, model)
    if span.want != "hidden" and not parts.head:
        raise EngineError("no-head", f"a shard without a head cannot compute `{span.want}`")
    if span.steps > 1 and not (parts.embedding and parts.head and span.want == "token"):
        raise EngineError("bad-span", "only a shard with embedding and head feeds tokens back")
    if span.start + span.count + span.steps - 1 > session.table.tokens:
        raise EngineError(
            "too-long",
            f"{span.count} positions from {span.start} and {span.steps - 1} more were not "
            f"reserved, {session.table.tokens} were",
        )
    _check_limits(session, span, model)
    if span.epoch < session.epoch:
        raise EngineError("old-epoch", f"epoch {session.epoch} has begun")


def _check_input(session: Session, span: Span, model: Compute) -> None:
    """Raise EngineError unless the tokens and hidden states of a span are the shard's input."""
    arch = model.arch
    if span.tokens is not None:
        if span.hidden is None and not model.parts.embedding:
            raise EngineError("no-embedding", "this shard takes hidden states, not tokens")
        if not 0 <= min(span.tokens) <= max(span.tokens) < arch.vocab:
            raise EngineError("bad-token", f"a token is not among the {arch.vocab} known")
        if span.hidden is None:
            return
    if len(span.hidden or b"") != span.count * session.row_bytes:
        raise EngineError("bad-hidden", f"the input is not {span.count} x {arch.hidden} values")


def _check_window(span: Span, model: Compute) -> None:
    """Raise EngineError unless a span may be a window of this shard."""
    if model.arch.recurrent:
        raise EngineError("unsupported", "recurrent layers cannot take a guess back")
    if span.count > WINDOW_ROWS or span.steps > 1:
        raise EngineError("bad-span", f"a window has at most {WINDOW_ROWS} positions")
    if span.want != ("token" if model.parts.head else "hidden"):
        raise EngineError("bad-span", "a window wants hidden states, or tokens of the head")
    if (span.tokens is not None) != (model.parts.embedding or model.parts.head):
        raise EngineError("bad-span", "the first shard and the head need a window's tokens")
    if (span.hidden is not None) == model.parts.embedding:
        raise EngineError("bad-span", "only the first shard needs no hidden states")


def _check_limits(session: Session, span: Span, model: Compute) -> None:
    """Raise EngineError if the answer would be too large or too many spans wait."""
    size = {
        "hidden": span.count * model.arch.hidden * DTYPE_BYTES[model.dtype],
        "logits": span.count * model.arch.vocab * 4,
        "token": 0,
        "pooled": model.arch.hidden * 4,
    }[span.want]
    if size > ANSWER_BYTES:
        raise EngineError("too-large", f"the answer would have {size} bytes")
    if len(session.waiting) >= WAITING_SPANS:
        raise EngineError("too-many", f"{WAITING_SPANS} spans of the session are waiting")
