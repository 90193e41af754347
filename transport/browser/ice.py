"""One UDP port for all browsers: an ICE-lite agent (RFC 8445, 2.5), without I/O.

A lite agent answers checks and never sends one. So a datagram leaves only for an address from
which one with a secret of this very session has come, and no offer can point the node at
anybody. The first address from which the DTLS handshake was completed stays: after that only
another port of the same IP address may take over (a NAT that changed its mapping), since only
then is it certain that somebody there receives what is sent (a check alone may be forged).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ..datagrams import Place
from ..rates import Bucket, Rate
from ..reach.stun import Kind, Message, authentic, decode, encode, is_stun
from . import defaults

_DTLS: Final = range(20, 64)  # first bytes of DTLS records (RFC 9443)


@dataclass(slots=True, eq=False)
class Session:
    """One browser's way to the port. `take` is called with each datagram of DTLS."""

    ufrag: str
    password: str
    peer_ufrag: str
    take: Callable[[bytes], None]
    bucket: Bucket
    place: Place | None = None  # where the browser is, once it has nominated a pair
    settled: bool = False  # DTLS has proven that somebody at `place` receives
    dropped: int = field(default=0)  # datagrams beyond the rate


class LiteAgent:
    """All sessions on one port. Feed datagrams; send what is returned to where it came from."""

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
        """A session for an offer; `ufrag` and `password` are this side's, new and random."""
        bucket = Bucket(Rate(self._rate / 4, self._rate), now)
        session = Session(ufrag, password, peer_ufrag, take, bucket)
        self._by_ufrag[ufrag] = session
        return session

    def close(self, session: Session) -> None:
        """Forget a session; what comes for it later is ignored."""
        self._by_ufrag.pop(session.ufrag, None)
        if session.place is not None:
            self._by_place.pop(session.place, None)

    def receive(self, data: bytes, source: Place, now: float) -> bytes | None:
        """Take one datagram; the answer to send back, if there is one."""
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
        """A check that is not in order gets no answer: a stranger learns nothing of the port."""
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
        """Move a session to where its browser says it is now; False where it may not go."""
        if session.place == source:
            return True
        if session.settled and session.place is not None and session.place[0] != source[0]:
            return False
        if source in self._by_place:  # another session's: one address and port is one browser
            return False
        if session.place is not None:
            del self._by_place[session.place]
        session.place = source
        self._by_place[source] = session
        return True
