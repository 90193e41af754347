"""Interface of the feed exchange to links and time, and the names of its messages."""

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from ...transport.identity import PeerId
from ..errors import StateError

NEWS: Final = "state.news"
DIGEST: Final = "state.digest"
HEADS: Final = "state.heads"
PULL: Final = "state.pull"
HAVE: Final = "state.have"


class Unanswered(Exception):
    """A peer refused, went away, or took too long."""


class Network(Protocol):
    """The peers with a link, and the time."""

    def now(self) -> float: ...

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        """Send a message that gets no reply. If `later`, it may wait to be sent with other
        messages."""
        ...

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Call a method of a peer, and return its reply. Raises Unanswered."""
        ...

    def blame(self, peer: PeerId, error: StateError) -> None:
        """End the link of a peer that broke the protocol."""
        ...

    async def pause(self) -> None:
        """Let other tasks run."""
        ...

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a context within which no other task takes entries in."""
        ...
