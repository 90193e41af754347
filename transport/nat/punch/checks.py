"""Connectivity checks between two peers, to find a pair of sockets and addresses that works.

This follows the ideas of ICE (RFC 8445), without I/O. Both sides send STUN Binding requests to all
addresses of the other that may be probed. A request is signed with a secret that the other side
gave over the link (RFC 8489, 9.1: short-term credentials). The receiver replies, and also checks
the address that the request came from (peer-reflexive, 7.3.1.3), if it may be sent to. A pair works
once a request was answered from where it was sent to. The controlling side waits a moment for
better pairs. Then it tells the other its choice in a request with USE-CANDIDATE, until that is
answered.

Unlike ICE, there is one component, and there are no foundations and no freezing. The roles are
fixed by the peer ids. A check may be a single shot, and a birthday search makes many of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from ...host.datagrams import Place
from ..reach.stun import TRANSACTION_BYTES, Kind, Message, authentic, encode
from .defaults import PunchLimits

S = TypeVar("S")
"""Identifies a socket; hashable."""

_TRIGGER_S: Final = 0.02  # the least time between two checks of a pair caused by the peer


@dataclass(frozen=True, slots=True)
class Send(Generic[S]):
    """One datagram to be sent now."""

    socket: S
    data: bytes
    to: Place


@dataclass(frozen=True, slots=True)
class Chosen(Generic[S]):
    """The pair that both sides use. `rtt` is in seconds, None if only the peer measured it."""

    socket: S
    place: Place
    rtt: float | None
    lan: bool


class _Pair(Generic[S]):
    __slots__ = ("at", "dead", "lan", "place", "rtt", "sent", "sent_at", "socket")

    def __init__(self, socket: S, place: Place, lan: bool) -> None:
        self.socket = socket
        self.place = place
        self.lan = lan
        self.rtt: float | None = None  # set once the pair works
        self.sent = 0
        self.sent_at = -inf
        self.at = inf  # time of the next check
        self.dead = False  # chosen, but never confirmed

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Rank of a working pair, smaller is better: by local network, IPv6 and round trip."""
        return not self.lan, ":" not in self.place[0], self.rtt if self.rtt is not None else inf


class Permits(Protocol):
    """Limits on the datagrams of checks."""

    def may_check(self, ip: str) -> bool:
        """Return whether an address may be sent to at all."""

    def spend(self, ip: str, now: float) -> bool:
        """Count one datagram. Return False if it must not be sent."""


class Checks(Generic[S]):
    """Checks of one side in one attempt.

    `name` is the attempt's, the same on both sides. `secret` signs incoming checks, `theirs` (known
    once the peer has replied) outgoing ones. `permits` limits what is sent.
    """

    def __init__(
        self,
        name: bytes,
        secret: bytes,
        permits: Permits,
        *,
        controlling: bool,
        entropy: Callable[[int], bytes],
        limits: PunchLimits,
    ) -> None:
        self.name = name
        self.controlling = controlling
        self.secret = secret
        self.theirs: bytes | None = None
        self.chosen: Chosen[S] | None = None
        self.heard = 0  # authentic requests from the peer
        self.refused = 0  # messages with a wrong key, from a wrong address, or repeated
        self.mapped: dict[S, Place] = {}  # where the peer last saw each of our sockets
        self.proven: set[str] = set()
        """IP addresses from which the peer has replied to a check."""
        self._permits = permits
        self._entropy = entropy
        self._limits = limits
        self._pairs: dict[tuple[S, Place], _Pair[S]] = {}
        self._queue: list[tuple[float, int, S, Place]] = []
        self._order = 0
        self._sent = 0
        self._paced_until = -inf
        self._pending: dict[bytes, tuple[S, Place, float, bool]] = {}
        self._requests: dict[bytes, None] = {}
        self._settle_at = inf
        self._choice: _Pair[S] | None = None
        self._nominations = 0
        self._nominate_at = inf
        self._out: list[Send[S]] = []

    # Checks to make.

    def pair(self, socket: S, place: Place, *, at: float, lan: bool = False) -> None:
        """Check a pair repeatedly for some seconds, beginning at the time `at`."""
        found = self._pairs.get((socket, place))
        if found is None:
            found = self._new_pair(socket, place, lan)
        if found is not None:
            found.sent = 0
            self._schedule(found, at)

    def shot(self, socket: S, place: Place, *, at: float) -> None:
        """Check once, at the time `at`, without regard to the usual pace."""
        self._order += 1
        heappush(self._queue, (at, self._order, socket, place))

    def stop(self) -> None:
        """Make no more checks. The peer's requests are still answered."""
        self._queue.clear()
        for pair in self._pairs.values():
            pair.at = inf
        self._settle_at = self._nominate_at = inf

    def _forget_shots(self) -> None:
        """Cancel a search because a pair works; more shots could make a router spoil a port."""
        self._queue = [item for item in self._queue if item[2:] in self._pairs]
        heapify(self._queue)

    def _new_pair(self, socket: S, place: Place, lan: bool) -> _Pair[S] | None:
        if len(self._pairs) >= self._limits.pairs or not self._permits.may_check(place[0]):
            return None
        pair = self._pairs[socket, place] = _Pair(socket, place, lan)
        return pair

    def _schedule(self, pair: _Pair[S], at: float) -> None:
        pair.at = at
        self.shot(pair.socket, pair.place, at=at)

    # Time.

    @property
    def due(self) -> float:
        """When to call `take` again; infinite for never, as before `theirs` is known."""
        if self._out:
            return -inf
        if self.theirs is None:
            return inf
        queued = max(self._queue[0][0], self._held_until()) if self._queue else inf
        return min(queued, self._settle_at, self._nominate_at)

    def _held_until(self) -> float:
        """Return when the first queued check may leave; ordinary checks keep the pace."""
        _, _, socket, place = self._queue[0]
        return self._paced_until if (socket, place) in self._pairs else -inf

    def take(self, now: float) -> list[Send[S]]:
        """Return the datagrams to send now."""
        if self.theirs is not None:
            self._check(now)
            if now >= self._settle_at:
                self._choose_best(now)
            if now >= self._nominate_at:
                self._nominate(now)
        out, self._out = self._out, []
        return out

    def _check(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now and self._held_until() <= now:
            at, _, socket, place = heappop(self._queue)
            pair = self._pairs.get((socket, place))
            if pair is None:
                self._request(socket, place, now)
            elif pair.at == at:  # otherwise it was rescheduled
                self._check_pair(pair, now)

    def _check_pair(self, pair: _Pair[S], now: float) -> None:
        limits = self._limits
        self._request(pair.socket, pair.place, now)
        pair.sent += 1
        pair.sent_at = now
        self._sent += 1
        self._paced_until = now + (
            limits.pace_s if self._sent < limits.burst else limits.slow_pace_s
        )
        pair.at = inf
        if pair.rtt is None and pair.sent <= len(limits.repeat_s):
            self._schedule(pair, now + limits.repeat_s[pair.sent - 1])

    def _request(self, socket: S, place: Place, now: float, *, use: bool = False) -> None:
        if (
            self.theirs is None
            or not self._permits.may_check(place[0])
            or not self._permits.spend(place[0], now)
        ):
            return
        transaction = self._entropy(TRANSACTION_BYTES)
        if len(self._pending) >= self._limits.pending:
            del self._pending[next(iter(self._pending))]
        self._pending[transaction] = socket, place, now, use
        message = Message(Kind.REQUEST, transaction, username=self.name, use_candidate=use)
        self._out.append(Send(socket, encode(message, self.theirs), place))

    # The choice.

    def _choose_best(self, now: float) -> None:
        self._settle_at = inf
        working = [p for p in self._pairs.values() if p.rtt is not None and not p.dead]
        if working and self.chosen is None:
            self._choice = min(working, key=lambda pair: pair.rank)
            self._nominations = 0
            self._nominate_at = now

    def _nominate(self, now: float) -> None:
        pair = self._choice
        if pair is None:
            self._nominate_at = inf
        elif self._nominations >= self._limits.nominations:  # it no longer works: choose another
            pair.dead = True
            self._nominate_at = inf
            self._choose_best(now)
        else:
            self._nominations += 1
            self._nominate_at = now + self._limits.nominate_s
            self._request(pair.socket, pair.place, now, use=True)

    def _choose(self, pair: _Pair[S]) -> None:
        self.stop()
        self.chosen = Chosen(pair.socket, pair.place, pair.rtt, pair.lan)

    # Received messages.

    def receive(self, message: Message, data: bytes, source: Place, socket: S, now: float) -> bool:
        """Take a STUN message. Return False if it does not belong to this attempt."""
        if message.kind is Kind.REQUEST:
            if message.username != self.name:
                return False
            self._on_request(message, data, source, socket, now)
            return True
        sent = self._pending.get(message.transaction)
        if sent is None:
            return False
        if message.kind is Kind.SUCCESS:
            self._on_success(message, data, source, socket, sent, now)
        return True

    def _on_request(
        self, message: Message, data: bytes, source: Place, socket: S, now: float
    ) -> None:
        """Reply to an authentic request, once, and only at an address that may be probed. Otherwise
        an attacker could replay a request and make us send to an address of its choice."""
        if not authentic(data, message, self.secret) or not self._permits.may_check(source[0]):
            self.refused += 1
            return
        if message.transaction in self._requests:
            self.refused += 1
            return
        if len(self._requests) >= self._limits.heard:
            del self._requests[next(iter(self._requests))]
        self._requests[message.transaction] = None
        self.heard += 1
        if self.heard == 1:
            self._forget_shots()
        if self._permits.spend(source[0], now):
            answer = Message(Kind.SUCCESS, message.transaction, mapped=source)
            self._out.append(Send(socket, encode(answer, self.secret), source))
        pair = self._pairs.get((socket, source)) or self._new_pair(socket, source, lan=False)
        if pair is None:
            return
        if message.use_candidate and not self.controlling:
            self._choose(pair)
        elif pair.rtt is None and self.chosen is None and now - pair.sent_at >= _TRIGGER_S:
            pair.sent = min(pair.sent, 1)
            self._paced_until = -inf
            self._schedule(pair, now)

    def _on_success(
        self,
        message: Message,
        data: bytes,
        source: Place,
        socket: S,
        sent: tuple[S, Place, float, bool],
        now: float,
    ) -> None:
        asked_by, asked, sent_at, use = sent
        if self.theirs is None or (socket, source) != (asked_by, asked):
            self.refused += 1  # a reply counts only from the address asked: RFC 8445, 7.2.5.2.1
            return
        if not authentic(data, message, self.theirs):
            self.refused += 1
            return
        del self._pending[message.transaction]
        self.proven.add(source[0])
        pair = self._pairs.get((socket, source)) or self._new_pair(socket, source, lan=False)
        if pair is None:
            return
        rtt, pair.at = now - sent_at, inf
        pair.rtt = rtt if pair.rtt is None else min(rtt, pair.rtt)
        if message.mapped is not None:
            self.mapped[socket] = message.mapped
        if self.controlling and self.chosen is None:
            if use:
                self._choose(pair)
            elif self._choice is None or self._choice.dead:
                settled = now if pair.lan else now + self._limits.settle_s
                self._settle_at = min(self._settle_at, settled)
