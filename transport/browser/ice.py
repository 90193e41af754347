"""An ICE-lite agent (RFC 8445, 2.5) that serves all browsers on one UDP port. No I/O.

A lite agent replies to checks and never sends one. So the node sends only to addresses from which
a check with a secret of the session has arrived, and no offer can make it send to a third party.
Once the DTLS handshake has completed, the session keeps that IP address, and only its port may
change (a NAT with a new mapping): the handshake proves that the browser receives at that address,
while a check alone may have a forged source.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..host.datagrams import Place
from ..nat.reach.stun import Kind, Message, authentic, decode, encode, is_stun
from ..rates import Bucket, Rate
from . import defaults

_DTLS: Final = range(20, 64)  # first bytes of DTLS records (RFC 9443)


@dataclass(slots=True, eq=False)
class Session:
    """The ICE session of one browser. `take` is called with each DTLS datagram."""

    ufrag: str
    password: str
    peer_ufrag: str
    take: Callable[[bytes], None]
    bucket: Bucket
    place: Place | None = None  # where the browser is, once it has nominated a pair
    settled: bool = False  # DTLS has proven that the browser receives at `place`
    dropped: int = field(default=0)  # datagrams beyond the rate


class LiteAgent:
    """The sessions on one port. Pass datagrams to `receive`, and send its reply to their source."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._strangers = Bucket(Rate(defaults.STRANGERS_RATE, defaults.STRANGERS_RATE), now)
        self._by_ufrag: dict[str, Session] = {}
        self._by_place: dict[Place, Session] = {}

    def open(
        self,
        *,
        ufrag: str,
        password: str,
        peer_ufrag: str,
        take: Callable[[bytes], None],
        now: float,
    ) -> Session:
        """Create a session for an offer; `ufrag` and `password` are ours, new and random."""
        bucket = Bucket(Rate(self._rate / 4, self._rate), now)
        session = Session(ufrag, password, peer_ufrag, take, bucket)
        self._by_ufrag[ufrag] = session
        return session

    def close(self, session: Session) -> None:
        """Remove a session; later datagrams for it are dropped."""
        self._by_ufrag.pop(session.ufrag, None)
        if session.place is not None:
            self._by_place.pop(session.place, None)

    def receive(self, data: bytes, source: Place, now: float) -> bytes | None:
        """Take one datagram; return the reply to send back, None if there is none."""
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
        """Reply to a valid check; return None for an invalid one, so that a scanner learns nothing
        about the port."""
        request = decode(data)
        if request is None or request.kind != Kind.REQUEST or request.username is None:
            return None
        ufrag, _, peer_ufrag = request.username.decode("ascii", "replace").partition(":")
        session = self._by_ufrag.get(ufrag)
        if session is None or peer_ufrag != session.peer_ufrag:
            return None
        if not authentic(data, request, session.password.encode()):
            return None
        if request.use_candidate and not self._nominate(session, source):
            return None
        answer = Message(Kind.SUCCESS, request.transaction, mapped=source)
        return encode(answer, session.password.encode(), sha256=False)

    def _nominate(self, session: Session, source: Place) -> bool:
        """Move a session to the address that its browser chose; return False if not allowed."""
        if session.place == source:
            return True
        if session.settled and session.place is not None and session.place[0] != source[0]:
            return False
        if source in self._by_place:  # taken by another session: one browser per address
            return False
        if session.place is not None:
            del self._by_place[session.place]
        session.place = source
        self._by_place[source] = session
        return True
