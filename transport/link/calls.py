"""The values that call handlers receive and return."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..identity import PeerId
from ..lane.frame import Bytes, Priority


# Not frozen: freezing triples the cost of creating one, and every call creates three.
@dataclass(slots=True)
class Call:
    """A peer's call. `header` is bounded in size and decoded, but its values are untrusted.

    `payload` may be a slice of the receive buffer: copy what has to outlive the handler.
    """

    peer: PeerId
    header: dict[str, object]
    payload: Bytes


@dataclass(slots=True)
class Reply:
    """A successful reply to a call. `priority` None means the call's own."""

    header: dict[str, object] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A coded refusal, raised at the caller as CallRefused. `code` has only a-z, 0-9 and -."""

    code: str
    message: str


Answer = Reply | Refusal
Handler = Callable[[Call], Answer] | Callable[[Call], Awaitable[Answer]]
"""A plain function runs inline in the link's reader and must not block. A coroutine function
gets a task of its own; each link bounds their number."""
