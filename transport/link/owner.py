"""Interface of the registry of links, as far as its links use it."""

from typing import Protocol, TypeVar

from ..bytestream import PathKind
from ..identity import PeerId

L = TypeVar("L", contravariant=True)
"""The links: `Link`, which the registry knows and this module need not."""


class LinkOwner(Protocol[L]):
    """Part of the registry of links (`Links`) that a link uses."""

    async def rescue(self, link: L) -> str | None:
        """Search for a new path for a link that has no path left, until cancelled.

        The search adds a path by `Link.attach`. Returns a code if the link must end at once.
        """
        ...

    def is_held(self, peer: PeerId) -> bool:
        """Return whether a component needs the link to a peer even while no call or stream is
        open."""
        ...

    def is_watched(self, peer: PeerId) -> bool:
        """Return whether a component waits to hear from the peer, so that the link must be pinged
        at the usual rate (`Link.rest`)."""
        ...

    def expire_by(self, at: float) -> None:
        """Schedule a call of `Link.expire` at the time `at`, on the host's clock, or earlier."""
        ...

    def retime(self, link: L) -> None:
        """Reschedule the next call of `Link.tick`, because `Link.due` has changed."""
        ...

    def carries_much(self, link: L) -> None:
        """Report that a link with a long round trip carries at least `LONG_RATE` bytes per
        second."""
        ...

    def fell_quiet(self, link: L) -> None:
        """Report that the peer has been silent so long that nothing new should be sent to it."""
        ...

    def came_back(self, link: L) -> None:
        """Report that the peer of a quiet link has been heard again."""
        ...

    def doubted(self, link: L, doubtful: bool) -> None:
        """Report that the search for a path of a link has begun (`doubtful`) or ended."""
        ...

    def found_path(self, link: L, path_kind: PathKind, medium: str) -> None:
        """Report that a path was added to a link. `medium` is that of `PathStatus`."""
        ...

    def lasting(self, link: L) -> None:
        """Report, once for each link, that a component wants to keep it for longer than a few
        questions."""
        ...
