"""Server of dial-backs: handles the calls, and dials from a new port if `DialBackGate` permits."""

from collections.abc import Callable, Iterable, Sequence

import trio

from ...errors import HostError
from ...host.seam import Host
from ...identity import PeerId
from ...link.calls import Call, Refusal, Reply
from . import defaults, stun
from .dialback import DialBackGate, No, Pay, WantedDialBack, parse_wanted
from .stun import MessageClass, StunMessage

SeenAt = Callable[[PeerId], Sequence[str]]
"""Returns the IP addresses at which this node itself sees a peer. There are none if this node
reaches the peer only through relays."""


class Dialler:
    """Server of `reach.dialback` (docs/spec/reach.md).

    `outside` returns the public IP addresses at which peers see this node. Such an address counts
    as this node's own: a dial to it from here would only reach the node's own router.
    """

    def __init__(
        self, host: Host, seen_at: SeenAt, outside: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._host = host
        self._seen_at = seen_at
        self._outside = outside
        self._gate = DialBackGate(host.entropy)
        self._under_way = 0

    async def serve(self, call: Call) -> Reply | Refusal:
        """Handle a call of `reach.dialback`: dial back, demand a payment, or refuse.

        The reply follows once the dial-back has been sent. It does not say how the other end
        reacted, because otherwise an asker could use this node as a port scanner.
        """
        wanted = parse_wanted(call.header)
        if wanted is None:
            return Refusal("bad-request", "a dial-back needs transport, ip, port and nonce")
        if self._under_way >= defaults.AT_ONCE:
            return Refusal("busy", "too many dial-backs at once")
        decision = self._gate.ask(
            call.peer,
            wanted,
            seen=self._seen_at(call.peer),
            own={*(item.address for item in self._host.interfaces()), *self._outside()},
            paid=len(call.payload),
            now=self._host.now(),
        )
        if isinstance(decision, No):
            return Refusal(decision.code, decision.message)
        if isinstance(decision, Pay):
            return Reply({"pay": decision.size})
        self._under_way += 1
        try:
            return Reply({"sent": await self._dial(wanted)})
        finally:
            self._under_way -= 1

    async def _dial(self, wanted: WantedDialBack) -> bool:
        """Send a dial-back. Return False if it could not be sent, for example without a route."""
        return await (self._by_tcp(wanted) if wanted.transport == "tcp" else self._by_udp(wanted))

    async def _by_tcp(self, wanted: WantedDialBack) -> bool:
        """Connect, send the nonce, and close the connection without reading from it.

        Returns False if this node has no route to the address. A refused connection and a timeout
        return True.
        """
        with trio.move_on_after(defaults.CONNECT_S):
            try:
                stream = await self._host.connect(*wanted.place)
            except ConnectionError:
                return True
            except OSError:  # this node has no route to the address
                return False
            try:
                await stream.send_all(defaults.DIALBACK_BYTE + wanted.nonce)
                await stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                stream.socket.close()
        return True

    async def _by_udp(self, wanted: WantedDialBack) -> bool:
        """Send copies of the nonce in a STUN indication. Return whether one could be sent."""
        local = "::" if ":" in wanted.place[0] else "0.0.0.0"
        try:
            socket = await self._host.datagrams(local, 0)
        except HostError:
            return False
        transaction = self._host.entropy(stun.TRANSACTION_BYTES)
        data = stun.encode(StunMessage(MessageClass.INDICATION, transaction, nonce=wanted.nonce))
        began, sent = self._host.now(), False
        try:
            for later in defaults.COPIES_S:
                await trio.sleep_until(began + later)
                sent |= socket.send(data, wanted.place)
        finally:
            socket.close()
        return sent
