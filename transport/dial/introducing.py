"""Dialler's side of the hello: turns a secured stream into a link, or a further path of one."""

import trio

from .. import defaults
from ..bytestream import PathKind
from ..errors import DialFailed
from ..handshake.meeting import Connected, Door, Refused
from ..handshake.secured import PathLost, SecureStream
from ..identity import PeerId
from ..link.link import Link
from ..link.links import Links

# Codes of a failed resumption after which the link cannot be resumed.
_FORGOTTEN = ("unknown-link", "peer-restarted")


class Introducing:
    """Sender of one endpoint's hellos; at most one first hello to a peer at a time."""

    def __init__(self, peer: PeerId, door: Door, links: Links) -> None:
        self._peer = peer
        self._door = door
        self._links = links

    async def join(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        port: int,
        name: str,
        nursery: trio.Nursery,
    ) -> Link:
        """Return the link to the peer at the other end of a secured stream, which listens on
        `port`. Raises DialFailed."""
        peer = secured.tls.peer
        try:
            if peer == self._peer:
                raise DialFailed("self", f"`{name}` is this node itself")
            if (known := self._links.link(peer)) is not None:
                return await self._carry_on(known, secured, path_kind)
            proving = await self._links.prove_alone(peer)
            try:
                if (known := self._links.link(peer)) is not None:
                    return await self._carry_on(known, secured, path_kind)
                connected = await self._say_hello(secured, name)
                link = self._links.register(connected, port)
            finally:
                proving.done()
        except Refused as refused:
            secured.close()
            return await self._after_refusal(peer, refused, name)
        except BaseException as error:
            secured.close()
            if isinstance(error, PathLost):
                raise DialFailed.unreachable(name, "it hung up during the hello") from None
            raise
        await nursery.start(self._links.run, link, connected, path_kind)
        return link

    async def _say_hello(self, secured: SecureStream, name: str) -> Connected:
        """Send the hello, within less time than other dials to the same peer wait for it."""
        with trio.move_on_after(defaults.HELLO_S):
            return await self._door.introduce(secured, None)
        raise DialFailed("timeout", f"`{name}` did not answer our hello")

    async def _carry_on(self, link: Link, secured: SecureStream, path_kind: PathKind) -> Link:
        """Add a further connection to a link. No dial waits for another here, or one that hangs
        would delay those that work."""
        connected = await self._door.introduce(secured, link.identities.peer_incarnation)
        if not self._links.add(connected, path_kind, link):
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
