"""An ICE-lite agent (RFC 8445, section 2.5) that serves all browsers on one UDP port. No I/O.

A lite agent replies to connectivity checks and never sends one. The node therefore sends only to
addresses from which a check with a secret of the session has arrived, and no offer can make it send
to a third party.

Once the DTLS handshake is complete, the IP address of the session no longer changes, because the
handshake has proven that the browser receives at that address. A check alone may have a forged
source. Only the port may still change, as it does when a NAT makes a new mapping.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..host.datagrams import Place
from ..nat.reach.stun import MessageClass, StunMessage, authentic, decode, encode, is_stun
from ..rates import Rate, RateLimiter
from . import defaults

_DTLS: Final = range(20, 64)  # first bytes of DTLS records (RFC 9443)


@dataclass(slots=True, eq=False)
class IceSession:
    """The ICE session of one browser. `take` is called with each DTLS datagram that arrives."""

    ufrag: str
    password: str
    peer_ufrag: str
    take: Callable[[bytes], None]
    bucket: RateLimiter
    place: Place | None = None  # the browser's address, once it has nominated a candidate pair
    settled: bool = False  # whether DTLS has proven that the browser receives at `place`
    dropped: int = field(default=0)  # datagrams dropped by the rate limiter


class LiteAgent:
    """The ICE sessions on one UDP port. Received datagrams must be passed to `receive`, whose reply
    must be sent to their source."""

    def __init__(self, rate: float, now: float) -> None:
        """`rate` is the number of datagrams that are accepted per second from one browser."""
        self._rate = rate
        self._strangers = RateLimiter(Rate(defaults.STRANGERS_RATE, defaults.STRANGERS_RATE), now)
        self._by_ufrag: dict[str, IceSession] = {}
        self._by_place: dict[Place, IceSession] = {}

    def open(
        self,
        *,
        ufrag: str,
        password: str,
        peer_ufrag: str,
        take: Callable[[bytes], None],
        now: float,
    ) -> IceSession:
        """Create and return a session for an offer. `ufrag` and `password` are this node's ICE
        credentials, which must be new and random. `peer_ufrag` is from the offer."""
        bucket = RateLimiter(Rate(self._rate / 4, self._rate), now)
        session = IceSession(ufrag, password, peer_ufrag, take, bucket)
        self._by_ufrag[ufrag] = session
        return session

    def close(self, session: IceSession) -> None:
        """Remove a session. Datagrams that arrive for it later are dropped."""
        self._by_ufrag.pop(session.ufrag, None)
        if session.place is not None:
            self._by_place.pop(session.place, None)

    def receive(self, data: bytes, source: Place, now: float) -> bytes | None:
        """Process one datagram and return the reply to send to its source, or None if there is
        none."""
        session = self._by_place.get(source)
        bucket = self._strangers if session is None else session.bucket
        if not bucket.take(now):
            if session is not None:
                session.dropped += 1
            return None
        if is_stun(data):
            return self._check(data, source)
        if session is not None and data and data[0] in _DTLS and len(data) < defaults.PACKET_BYTES:
            session.take(data)
        return None

    def _check(self, data: bytes, source: Place) -> bytes | None:
        """Return the reply to a valid connectivity check. Return None for an invalid one, so that a
        scanner learns nothing about the port."""
        request = decode(data)
        if request is None or request.kind != MessageClass.REQUEST or request.username is None:
            return None
        ufrag, _, peer_ufrag = request.username.decode("ascii", "replace").partition(":")
        session = self._by_ufrag.get(ufrag)
        if session is None or peer_ufrag != session.peer_ufrag:
            return None
        if not authentic(data, request, session.password.encode()):
            return None
        if request.use_candidate and not self._nominate(session, source):
            return None
        answer = StunMessage(MessageClass.SUCCESS, request.transaction, mapped=source)
        return encode(answer, session.password.encode(), sha256=False)

    def _nominate(self, session: IceSession, source: Place) -> bool:
        """Set the address of a session to the one that its browser has nominated. Return False if
        this is not allowed."""
        if session.place == source:
            return True
        if session.settled and session.place is not None and session.place[0] != source[0]:
            return False
        if source in self._by_place:  # another session uses this address
            return False
        if session.place is not None:
            del self._by_place[session.place]
        session.place = source
        self._by_place[source] = session
        return True
