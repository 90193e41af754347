"""What a handler gets and gives."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .frame import Bytes, Priority
from .identity import PeerId


# Not frozen: that would treble what making one costs, and every call makes three.
@dataclass(slots=True)
class Call:
    """A peer's call. `header` is size-bounded and decoded, its values are untrusted.

    `payload` may be a slice of the buffer it came in: copy what is kept for long.
    """

    peer: PeerId
    header: dict[str, Any]
    payload: Bytes


@dataclass(slots=True)
class Reply:
    """The answer to a call. `priority` None means the call's own."""

    header: dict[str, Any] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The coded no: CallRefused(code, message) at the caller. `code` is a word of a-z, 0-9, -."""

    code: str
    message: str


Answer = Reply | Refusal
Handler = Callable[[Call], Answer] | Callable[[Call], Awaitable[Answer]]
"""A plain function runs inline in the link's reader and must not block; a coroutine function
gets a task of its own, bounded per link."""
