"""Dialler's side of the hello: turns a secured stream into a link, or a further path of one."""

import trio

from . import defaults
from .errors import DialFailed
from .identity import PeerId
from .link import Link
from .links import Links
from .meeting import Connected, Door, Refused
from .path import Path, PathLost
from .pipe import Way

# Codes of a failed resumption after which the link cannot be resumed.
_FORGOTTEN = ("unknown-link", "peer-restarted")


class Introducing:
    """Sender of one endpoint's hellos; at most one first hello to a peer at a time."""

    def __init__(self, peer: PeerId, door: Door, links: Links) -> None:
        self._peer = peer
        self._door = door
        self._links = links

    async def join(self, path: Path, way: Way, port: int, name: str, nursery: trio.Nursery) -> Link:
        """Return the link to the peer at the other end of a secured stream, which listens on
        `port`. Raises DialFailed."""
        peer = path.tls.peer
        try:
            if peer == self._peer:
                raise DialFailed("self", f"`{name}` is this node itself")
            if (known := self._links.link(peer)) is not None:
                return await self._carry_on(known, path, way)
            proving = await self._links.prove_alone(peer)
            try:
                if (known := self._links.link(peer)) is not None:
                    return await self._carry_on(known, path, way)
                connected = await self._say_hello(path, name)
                link = self._links.register(connected, port)
            finally:
                proving.done()
        except Refused as refused:
            path.close()
            return await self._after_refusal(peer, refused, name)
        except BaseException as error:
            path.close()
            if isinstance(error, PathLost):
                raise DialFailed.unreachable(name, "it hung up during the hello") from None
            raise
        await nursery.start(self._links.run, link, connected, way)
        return link

    async def _say_hello(self, path: Path, name: str) -> Connected:
        """Send the hello, within less time than other dials to the same peer wait for it."""
        with trio.move_on_after(defaults.HELLO_S):
            return await self._door.introduce(path, None)
        raise DialFailed("timeout", f"`{name}` did not answer our hello")

    async def _carry_on(self, link: Link, path: Path, way: Way) -> Link:
        """Add a further connection to a link. No dial waits for another here, or one that hangs
        would delay those that work."""
        connected = await self._door.introduce(path, link.identities.peer_incarnation)
        if not self._links.add(connected, way, link):
            raise DialFailed("closed", f"the link to `{link.peer}` has ended in the meantime")
        return link

    async def _after_refusal(self, peer: PeerId, refused: Refused, name: str) -> Link:
        self._door.tell_refused(peer, refused)
        if refused.code == "duplicate":  # the peer's own dial wins
            with trio.move_on_after(defaults.DUPLICATE_S):
                while (link := self._links.link(peer)) is None:
                    await self._links.news.park()
                return link
        if refused.code in _FORGOTTEN and (link := self._links.link(peer)) is not None:
            link.close("peer-restarted")
        raise DialFailed(refused.code, f"`{name}` refused us: {refused.words}")
