"""Relay service for peers with a link to this node (docs/spec/relay.md).

With the post `relay.lends`, this node tells its peers that it relays. Peer A makes a reservation
with the call `relay.reserve`. To reach A, peer B opens the stream `relay.connect` to this node.
This node then opens the stream `relay.accept` to A, and copies bytes in both directions, within the
limits of the book and no faster than the slower side reads.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from ..bytestream import PathKind
from ..dial.endpoint import Endpoint
from ..errors import CallRefused, LinkClosed
from ..host.seam import Host
from ..identity import PeerId, parse_peer_id
from ..lane.frame import Priority
from ..link.calls import Call, Refusal, Reply
from ..link.link import Link
from ..link.serving import IncomingStream
from ..link.stream import Stream
from ..rates import Rate, Rates
from .book import EXPIRED, Asker, Circuit, RelayBook
from .circuit import encode_preface
from .defaults import (
    FETCH_S,
    FETCHES,
    FETCHES_BY_ASKER,
    FETCHES_OF_TARGET,
    LOOK_S,
    OPENING_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    RelayLimits,
)
from .openings import Openings
from .standing import LinkedTimes
from .vouch import is_relayed, seen_at

Since = Callable[[PeerId], float | None]
"""Returns the time at which a peer became a member, on the host's clock; None for a stranger."""


class RelayService:
    """Relay between peers that have links to this node. It needs no task of its own.

    `member` returns the time at which a peer became a member. By default, every peer of a private
    group is a member. In an open swarm, a peer becomes a member when it has been linked here for a
    while (standing.py). `fetch(peer)` tries to make a direct link to a peer that a member wants to
    reach through this node.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        limits: RelayLimits,
        *,
        book: RelayBook | None = None,
        member: Since | None = None,
        fetch: Callable[[PeerId], Awaitable[None]] | None = None,
    ) -> None:
        self.fetch = fetch
        self.book = book or RelayBook(limits, host.now(), endpoint.shaper)
        self._host = host
        self._endpoint = endpoint
        self._standing = LinkedTimes()
        self.member = member or self.since
        self._openings = Openings(host, limits.rate)
        self._coming: set[tuple[PeerId, PeerId]] = set()  # (source, target) of waiting circuits
        self._fetching = 0
        self._asked_by = Rates(Rate(*FETCHES_BY_ASKER))
        self._asked_for = Rates(Rate(*FETCHES_OF_TARGET))
        endpoint.handle("relay.info", self._on_info)
        endpoint.handle("relay.reserve", self._on_reserve)
        endpoint.handle("relay.release", self._on_release)
        endpoint.handle_stream("relay.connect", self._on_connect)
        endpoint.on_link(self._on_link)
        endpoint.on_link_lost(self._on_link_lost)
        endpoint.on_path(self._on_path)

    # Relaying and membership.

    @property
    def reachable(self) -> bool:
        """Whether other nodes are known to reach this one.

        The node relays while they do, and in any case if its owner wants it to
        (`RelayLimits.volunteer`). With a rate of 0 it never relays.
        """
        return self.book.reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        before, self.book.reachable = self.book.lends, reachable
        if self.book.lends != before:
            for link in self._endpoint.links():
                self._tell(link)

    def _tell(self, link: Link) -> None:
        """Tell a peer this node's rate as a relay, 0 if it does not relay."""
        rate = self.book.limits.rate if self.book.lends else 0
        with suppress(LinkClosed):  # an earlier callback may have closed it
            if link.connected:
                link.post("relay.lends", {"rate": rate}, priority=Priority.CONTROL)

    def _on_link(self, link: Link) -> None:
        if self.book.lends:
            self._tell(link)

    def since(self, peer: PeerId) -> float | None:
        """Return the time at which a peer became a member; None for a stranger.

        This is the default of `member`.
        """
        return (
            self._standing.since(peer, self._host.now()) if self._endpoint.admission.open else 0.0
        )

    # Reservations.

    def _on_info(self, call: Call) -> Reply | Refusal:
        """Handle `relay.info`: reply with the free reservations and the rate in bytes per
        second."""
        limits = self.book.limits
        if not self.book.lends:
            return Refusal("not-a-relay", "this node does not relay")
        figures = self.book.figures()
        free = limits.reservations - figures.reservations
        return Reply({"free": max(0, free), "rate": limits.rate})

    def _on_reserve(self, call: Call) -> Reply | Refusal:
        """Handle `relay.reserve`: make or renew the caller's reservation."""
        link = self._endpoint.link(call.peer)
        if link is None:
            return Refusal("no-link", "the link has ended")
        seen = seen_at(link)
        asker = Asker(call.peer, seen.ip, self.member(call.peer), is_relayed(link))
        got = self.book.reserve(asker, self._host.now())
        if isinstance(got, str):
            return Refusal(got, "the reservation was refused")
        limits = self.book.limits
        lasts = limits.member_s if got.member else limits.stranger_s
        return Reply({"ttl": limits.reservation_s, "seconds": lasts, "seen": list(seen)})

    def _on_release(self, call: Call) -> Reply:
        """Handle `relay.release`: remove the caller's reservation."""
        self.book.release(call.peer)
        return Reply()

    def _on_link_lost(self, link: Link, code: str) -> None:
        """Remove the reservation of a peer whose link has ended and was not replaced."""
        if self._endpoint.link(link.peer) is None:  # otherwise a new link has replaced it
            self.book.release(link.peer)
            self._standing.gone(link.peer, self._host.now())

    def _on_path(self, link: Link, way: PathKind, medium: str) -> None:
        """Send a peer's new address to the other ends of its circuits."""
        if way is PathKind.RELAYED:
            return
        self._standing.linked(link.peer, seen_at(link).ip, self._host.now())
        header = {"peer": link.peer, "seen": list(seen_at(link))}
        for other in sorted({_other_end(each, link.peer) for each in self.book.circuits()} - {""}):
            told = self._endpoint.link(PeerId(other))
            if told is not None and told.connected:
                told.post("relay.seen", header, priority=Priority.CONTROL)

    # Circuits.

    async def _on_connect(self, incoming: IncomingStream) -> None:
        """Serve a stream `relay.connect`: open a circuit from the peer to the target, and copy its
        bytes until it ends."""
        near = incoming.stream
        near.narrow(WINDOW_BYTES)
        near.carry_link()
        near.lend()
        source, target = incoming.peer, parse_peer_id(_text(incoming.header["peer"]))
        if not self.book.holds(target, self._host.now()):
            await self._fetch(source, target)
        if (code := await self._wait_for_turn(near, source, target)) is not None:
            near.reset(code)
            return
        try:
            links = self._endpoint.link(source), self._endpoint.link(target)
            opened = self._open(source, target, *links)
            if isinstance(opened, str):
                near.reset(opened)
                return
            circuit, here, there = opened
            try:
                await self._join(circuit, near, here, there)
            finally:
                circuit.close()
        finally:
            self._openings.leave(near)

    async def _wait_for_turn(self, near: Stream, source: PeerId, target: PeerId) -> str | None:
        """Wait until a circuit may be opened. Return None, or the code with which it is refused.

        If two peers dial each other at the same time, only one of the two circuits is opened.
        """
        if (target, source) in self._coming or self.book.crosses(source, target, self._host.now()):
            return "crossing"
        self._coming.add((source, target))
        try:
            member = self.member(source) is not None
            if await self._openings.enter(near, source, member=member):
                return None
        finally:
            self._coming.discard((source, target))
        return "busy"

    async def _fetch(self, source: PeerId, target: PeerId) -> None:
        """Try to make a link to a target that has no reservation here.

        The attempts are limited, because the source chooses the peer that is dialled.
        """
        link, now = self._endpoint.link(target), self._host.now()
        if self.fetch is None or not self.book.lends or self.member(source) is None:
            return
        if target == source or (link is not None and link.connected and not is_relayed(link)):
            return
        may = self._fetching < FETCHES and self._asked_by.take(source, now)
        if not may or not self._asked_for.take(target, now):
            return
        self._fetching += 1
        try:
            with trio.move_on_after(FETCH_S):
                await self.fetch(target)
        finally:
            self._fetching -= 1

    def _open(
        self, source: PeerId, target: PeerId, here: Link | None, there: Link | None
    ) -> tuple[Circuit, Link, Link] | str:
        """Open a circuit in the book. `here` is the link to the source, `there` that to the target.

        Returns (circuit, `here`, `there`), or the code with which the circuit is refused.
        """
        if here is None:
            return "no-link"
        asker = Asker(source, seen_at(here).ip, self.member(source), is_relayed(here))
        visited = there is not None and self.member(target) is not None
        circuit = self.book.open_circuit(asker, target, self._host.now(), visited=visited)
        if isinstance(circuit, str):
            return circuit
        if there is None or not there.connected or is_relayed(there):
            circuit.close()
            return "target-gone"
        return circuit, here, there

    async def _join(self, circuit: Circuit, near: Stream, here: Link, there: Link) -> None:
        """Open the stream to the target, and copy bytes until both directions have ended."""
        priority = max(near.priority, Priority.ACTIVATION)
        header = {"peer": circuit.source, "seen": list(seen_at(here))}
        try:
            far = await there.open_stream("relay.accept", header, priority=priority)
        except (CallRefused, LinkClosed) as error:
            near.reset("target-busy" if error.code == "busy" else "target-gone")
            return
        far.narrow(WINDOW_BYTES)
        far.carry_link()
        far.lend()
        code: str | None = "source-gone"
        try:
            await near.send(encode_preface(seen_at(there)))
            code = await self._splice(circuit, near, far)
        except (CallRefused, LinkClosed) as error:
            code = error.code
        finally:
            if code is not None:
                near.reset(code)
                far.reset(code)

    async def _splice(self, circuit: Circuit, near: Stream, far: Stream) -> str | None:
        """Copy both directions. Return None once both have ended normally, or the code of the
        failure."""
        codes: list[str] = []
        with trio.move_on_at(circuit.deadline) as overtime:
            circuit.on_cut(overtime.cancel)
            async with trio.open_nursery() as nursery:

                async def carry(source: Stream, target: Stream) -> None:
                    code = await self._carry(circuit, source, target)
                    if code is not None:
                        codes.append(code)
                        nursery.cancel_scope.cancel()

                nursery.start_soon(carry, near, far)
                nursery.start_soon(carry, far, near)
        if codes:
            return codes[0]
        return EXPIRED if overtime.cancelled_caught else None

    async def _carry(self, circuit: Circuit, source: Stream, target: Stream) -> str | None:
        """Copy one direction. Return None at its normal end, or the code with which the circuit
        ends.

        Bytes are read only when the target accepts them. The source's flow control therefore limits
        the bytes that wait here.
        """
        try:
            while source.failed is None:
                await source.wait_receivable()
                if not target.is_sendable(PIECE_BYTES):
                    with trio.move_on_after(LOOK_S):  # the source may fail in the meantime
                        await target.wait_sendable(PIECE_BYTES)
                    continue
                now = self._host.now()
                room = circuit.room(now)
                if not room:
                    if circuit.over(now):
                        return EXPIRED
                    await trio.sleep(circuit.pause())
                elif self._move(circuit, source, target, min(room, PIECE_BYTES)):
                    await trio.lowlevel.checkpoint()
                else:
                    return None
        except CallRefused as error:
            return error.code
        except LinkClosed:
            return "link-lost"
        return source.failed

    def _move(self, circuit: Circuit, source: Stream, target: Stream, most: int) -> bool:
        """Copy up to `most` available bytes. Return False at the end of the source's direction."""
        try:
            data = source.receive_ready(most)
        except BlockingIOError:
            return True
        if not data:
            target.end()
            return False
        circuit.spend(len(data), self._host.now())
        if circuit.carried >= OPENING_BYTES:
            self._openings.leave(source)
            self._openings.leave(target)
        target.send_ready(data, 2 * PIECE_BYTES)
        return True


def _other_end(circuit: Circuit, peer: PeerId) -> str:
    """Return the peer at the other end of a peer's circuit; "" if that peer is at neither end."""
    if peer not in (circuit.source, circuit.target):
        return ""
    return circuit.target if peer == circuit.source else circuit.source


def _text(value: object) -> str:
    """Return a header value that must be text. Raises TypeError if it is not."""
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value
