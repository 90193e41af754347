"""Dialler's side of the hello: turns a secured stream into a link, or into a path of a link."""

import trio

from .. import defaults
from ..bytestream import PathKind
from ..errors import DialFailed
from ..handshake.meeting import Connected, HelloExchange, HelloRefused
from ..handshake.secured import PathLost, SecureStream
from ..identity import PeerId
from ..link.link import Link
from ..link.links import Links

# Codes of refusals after which a link cannot be resumed.
_FORGOTTEN = ("unknown-link", "peer-restarted")


class Introducing:
    """Sender of an endpoint's hellos as the dialler.

    At most one dial to a peer at a time sends a first hello.
    """

    def __init__(self, peer: PeerId, hellos: HelloExchange, links: Links) -> None:
        self._peer = peer
        self._hellos = hellos
        self._links = links

    async def join(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        port: int,
        name: str,
        nursery: trio.Nursery,
    ) -> Link:
        """Exchange hellos on a secured stream, and return the link to the peer at its other end.

        `port` is the port on which that peer listens, and `name` the name of the stream in
        messages. Raises DialFailed if the peer refuses or does not answer.
        """
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
        except HelloRefused as refused:
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
        """Exchange hellos within `HELLO_S` seconds. The limit is short because other dials to the
        peer wait for this exchange to end."""
        with trio.move_on_after(defaults.HELLO_S):
            return await self._hellos.introduce(secured, None)
        raise DialFailed("timeout", f"`{name}` did not answer our hello")

    async def _carry_on(self, link: Link, secured: SecureStream, path_kind: PathKind) -> Link:
        """Add a further connection to a link as a path.

        Several dials may do this at the same time. If they waited for each other, one that hangs
        would delay those that work.
        """
        connected = await self._hellos.introduce(secured, link.identities.peer_incarnation)
        if not self._links.add(connected, path_kind, link):
            raise DialFailed("closed", f"the link to `{link.peer}` has ended in the meantime")
        return link

    async def _after_refusal(self, peer: PeerId, refused: HelloRefused, name: str) -> Link:
        """Handle a refusal by the peer.

        If the peer prefers its own dial (`duplicate`), wait for the link and return it. Otherwise
        raise DialFailed.
        """
        self._hellos.tell_refused(peer, refused)
        if refused.code == "duplicate":  # the peer's own dial wins
            with trio.move_on_after(defaults.DUPLICATE_S):
                while (link := self._links.link(peer)) is None:
                    await self._links.news.park()
                return link
        if refused.code in _FORGOTTEN and (link := self._links.link(peer)) is not None:
            link.close("peer-restarted")
        raise DialFailed(refused.code, f"`{name}` refused us: {refused.words}")
