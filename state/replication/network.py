"""Interface between the feed exchange and the links, and the names of its messages."""

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
    """A peer refused a call, went away, or took too long to reply."""


class ReplicationPeers(Protocol):
    """The linked peers, and the time, as the feed exchange sees them."""

    def now(self) -> float: ...

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        """Send a message that gets no reply.

        If `later`, it may wait until other messages are sent.
        """
        ...

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Call a method of a peer, and return the reply. Raises Unanswered if there is none."""
        ...

    def blame(self, peer: PeerId, error: StateError) -> None:
        """Close the link to a peer that broke the protocol."""
        ...

    async def pause(self) -> None:
        """Let other tasks run."""
        ...

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that only one task at a time can enter.

        Hold it while changing feeds.
        """
        ...
