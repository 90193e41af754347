"""The browsers of a gate: answers their offers, checks their proofs, and runs their data
channels."""

from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import trio

from ..guard import Guard
from ..host.datagrams import Datagrams, Place
from ..host.seam import Host
from ..identity import Identity, PeerId, public_key_of
from ..limits import Crowd
from ..rates import Rate, SourceRates
from . import defaults
from .bridge import Bridge, Carrier, FarEnd
from .channel import ChannelByteStream
from .clear import BrowserSession
from .defaults import BrowserLimits
from .exchange import HttpRefusal
from .ice import IceSession, LiteAgent
from .proof import LISTENER, PROOF_BYTES, Meeting, dialler_of, prove
from .sdp import answer
from .signalling import BadRequest, JoinRequest, encode_answer, parse_join

_UFRAG_BYTES: Final = 6  # 8 characters
_PASSWORD_BYTES: Final = 18  # 24 characters; RFC 8445, section 5.3, requires 128 random bits
_CANDIDATES: Final = 8  # most addresses in an answer


@dataclass(slots=True, eq=False)
class _Visit:
    """One browser, from the answer to its offer to the end of its data channel."""

    carrier: Carrier
    session: IceSession
    meeting: Meeting
    peer: PeerId | None = None  # None until the browser has proven it


@dataclass(slots=True)
class VisitCounts:
    """Results of browsers' attempts to join, counted since the start."""

    proven: int = 0
    bad_proofs: int = 0  # proofs that were not valid
    breaches: int = 0  # channels closed because the browser violated the protocol


@dataclass(frozen=True, slots=True)
class Media:
    """The parts that carry the data channels of all browsers: DTLS and SCTP (`bridge`), and the UDP
    port."""

    bridge: Bridge
    datagrams: Datagrams


class Visits:
    """All browsers on one UDP port. `deliver` is called with the session of each browser that has
    proven its peer id."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        deliver: Callable[[BrowserSession], None],
        media: Media,
        *,
        limits: BrowserLimits,
        guard: Guard,
    ) -> None:
        self.counts = VisitCounts()
        self._host = host
        self._guard = guard
        self._identity = identity
        self._deliver = deliver
        self._bridge = media.bridge
        self._datagrams = media.datagrams
        self._limits = limits
        self._agent = LiteAgent(limits.packets_per_second, host.now())
        rate = limits.joins_per_minute
        self._joins = SourceRates(Rate(max(1.0, rate / 2), rate / 60))
        self._joining = Crowd(limits.joining, max(1, limits.joining // 2), limits.joining)
        self._inside = Crowd(limits.browsers, max(1, limits.browsers // 2), limits.browsers)
        self._visits: set[_Visit] = set()

    @property
    def count(self) -> int:
        """The present number of browsers, including those that have not proven their peer ids
        yet."""
        return len(self._visits)

    @property
    def joining(self) -> int:
        """The number of browsers that have received an answer but have not proven their peer ids
        yet."""
        return sum(visit.peer is None for visit in self._visits)

    async def receive(self) -> None:
        """Process the datagrams of the UDP port until it is closed."""
        with suppress(trio.ClosedResourceError):
            while True:
                for data, source in await self._datagrams.receive():
                    with self._guard.around(source):
                        reply = self._agent.receive(data, source, self._host.now())
                        if reply is not None:
                            self._datagrams.send(reply, source)

    def join(self, body: bytes, source: str, places: list[Place], nursery: trio.Nursery) -> bytes:
        """Return the answer to a posted offer, and start a task that waits for the browser to
        connect.

        `source` is the browser's IP address. `places` are the addresses of the UDP port to offer to
        it. Raises HttpRefusal if the offer is not valid or a limit is reached.
        """
        now = self._host.now()
        if not self._joins.take(source, now):
            raise HttpRefusal(429, "too many offers from there; try again in a minute")
        try:
            wanted = parse_join(body)
        except BadRequest as error:
            raise HttpRefusal(400, str(error)) from None
        with ExitStack() as inside, ExitStack() as joining:
            for crowd, places_of in ((self._inside, inside), (self._joining, joining)):
                entry = crowd.enter(source, now)
                if entry is None:
                    raise HttpRefusal(503, "no room for another browser now")
                places_of.callback(crowd.leave, entry)
            visit = self._open(wanted)
            self._visits.add(visit)
            who, stacks = f"browser at {source}", (inside.pop_all(), joining.pop_all())
            self._guard.start(nursery, who, self._carry, visit, *stacks)
        sdp = answer(
            wanted.offer,
            ufrag=visit.session.ufrag,
            password=visit.session.password,
            fingerprint=self._bridge.fingerprint,
            places=list(dict.fromkeys(places))[:_CANDIDATES],
        )
        return encode_answer(sdp, visit.meeting.listener_nonce, self._identity.public_key)

    def _open(self, wanted: JoinRequest) -> _Visit:
        def send(data: bytes) -> None:
            if session.place is not None:
                self._datagrams.send(data, session.place)

        def settled() -> None:
            session.settled = True
            carrier.locate(session.place or ("", 0))

        carrier = Carrier(
            self._bridge,
            FarEnd(wanted.offer.fingerprint, wanted.offer.sctp_port),
            server=True,
            send=send,
            settled=settled,
        )
        session = self._agent.open(
            ufrag=self._letters(_UFRAG_BYTES),
            password=self._letters(_PASSWORD_BYTES),
            peer_ufrag=wanted.offer.ufrag,
            take=carrier.take,
            now=self._host.now(),
        )
        meeting = Meeting(
            wanted.nonce,
            self._host.entropy(defaults.NONCE_BYTES),
            wanted.offer.fingerprint,
            self._bridge.fingerprint,
        )
        return _Visit(carrier, session, meeting)

    def _letters(self, size: int) -> str:
        """Return `size` random bytes as base64 text, whose characters ICE allows."""
        return b64encode(self._host.entropy(size)).decode()

    async def _carry(self, visit: _Visit, inside: ExitStack, joining: ExitStack) -> None:
        """Run a browser's data channel until it ends. Closing the two stacks removes the browser
        from the counts that limit all browsers (`inside`) and those that are joining
        (`joining`)."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_run_and_cancel, visit.carrier, nursery.cancel_scope)
                with joining, trio.move_on_after(self._limits.join_s):
                    await visit.carrier.opened.wait()
                    session = await self._prove(visit)
                    if session is not None:
                        self.counts.proven += 1
                        visit.peer = session.peer
                        self._deliver(session)
                if visit.peer is None:
                    nursery.cancel_scope.cancel()
        finally:
            inside.close()
            self.counts.breaches += visit.carrier.breach is not None
            self._visits.discard(visit)
            self._agent.close(visit.session)

    async def _prove(self, visit: _Visit) -> BrowserSession | None:
        """Check the browser's proof of its peer id and send this node's proof. Return the session,
        or None if the proof is not valid or the browser has left."""
        byte_stream, key, meeting = (
            visit.carrier.byte_stream,
            self._identity.public_key,
            visit.meeting,
        )
        try:
            peer = dialler_of(await read_exactly(byte_stream, PROOF_BYTES), meeting, key)
            if peer is None:
                self.counts.bad_proofs += 1
                return None
            dialler_key = public_key_of(peer)
            transcript = meeting.transcript(dialler_key, key)
            byte_stream.write_ready(memoryview(prove(self._identity, LISTENER, transcript)))
        except (OSError, trio.ClosedResourceError):
            return None
        return BrowserSession(byte_stream, peer, meeting.exporter(dialler_key, key))


async def _run_and_cancel(carrier: Carrier, scope: trio.CancelScope) -> None:
    await carrier.run()
    scope.cancel()


async def read_exactly(byte_stream: ChannelByteStream, size: int) -> bytes:
    """Read `size` bytes, or fewer if the stream ends before. Raises OSError if the stream is lost,
    and trio.ClosedResourceError if it is closed."""
    data = b""
    while len(data) < size:
        await byte_stream.wait_readable()
        with suppress(BlockingIOError):
            piece = byte_stream.read_ready(size - len(data))
            if not piece:
                break
            data += piece
    return data
