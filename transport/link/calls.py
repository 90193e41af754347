"""Values that handlers of calls receive and return."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..identity import PeerId
from ..lane.frame import Bytes, Priority


# These classes are not frozen, because that triples the cost of creating an object, and every call
# creates three of them.
@dataclass(slots=True)
class Call:
    """A call or post of a peer. `header` is decoded and limited in size, but its values are
    untrusted.

    `payload` may be a slice of the receive buffer. A handler must copy the parts that are still
    needed after it returns.
    """

    peer: PeerId
    header: dict[str, object]
    payload: Bytes


@dataclass(slots=True)
class Reply:
    """A successful reply to a call. If `priority` is None, the reply has the priority of the
    call. It may wait for `within` seconds, so that it leaves with other frames."""

    header: dict[str, object] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority | None = None
    within: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a call, which raises CallRefused at the caller. `code` consists of a-z, 0-9 and
    -."""

    code: str
    message: str


Answer = Reply | Refusal
Handler = Callable[[Call], Answer] | Callable[[Call], Awaitable[Answer]]
"""A plain function runs inline in the link's reader and must not block. A coroutine function
gets a task of its own; each link bounds their number."""
