"""The interface of the exchange of feeds to links and time, and the names of its messages."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from ..transport.identity import PeerId
from .errors import StateError

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
        """Send something that is not answered. It may leave `later`, with something else."""
        ...

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Raises Unanswered."""
        ...

    def blame(self, peer: PeerId, error: StateError) -> None:
        """End the link of a peer that broke the protocol."""
        ...

    async def pause(self) -> None:
        """Let others run."""
        ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Return a context within which no other task takes entries in."""
        ...
