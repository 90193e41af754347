"""Connectivity checks: find a socket and an address of the peer between which datagrams pass.

No I/O. The method follows ICE (RFC 8445). Both sides send STUN Binding requests to all addresses of
the peer to which they may send. A request is signed with a secret that the receiver has sent over
the link (short-term credentials, RFC 8489, section 9.1). The receiver replies. It also checks the
address from which the request came, if it may send to it (a peer-reflexive candidate, RFC 8445,
section 7.3.1.3). A *pair* of a socket and an address works once a reply has come from the address
to which the request was sent. The *controlling* side waits a moment for better pairs. It then
repeats a request with USE-CANDIDATE on the pair that it chooses, until the peer replies.

Unlike ICE, there is one component, and there are no foundations and no frozen pairs. The peer ids
decide which side is controlling. A pair may also be checked only once (a *shot*). A birthday search
(`predict.py`) consists of many shots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from ...host.datagrams import Place
from ..reach.stun import TRANSACTION_BYTES, MessageClass, StunMessage, authentic, encode
from .defaults import PunchLimits

S = TypeVar("S")
"""Type of a value that identifies a socket. It must be hashable."""

_TRIGGER_S: Final = 0.02
"""Shortest time, in seconds, between two checks of a pair that are sent because of the peer's
requests."""


@dataclass(frozen=True, slots=True)
class Send(Generic[S]):
    """A datagram to send now."""

    socket: S
    data: bytes
    to: Place


@dataclass(frozen=True, slots=True)
class Chosen(Generic[S]):
    """The pair that both sides will use."""

    socket: S
    place: Place
    rtt: float | None  # round trip in seconds; None if only the peer has measured it
    lan: bool  # whether the address is in the local network


class _Pair(Generic[S]):
    """A pair of a socket and an address that is checked repeatedly."""

    __slots__ = ("at", "dead", "lan", "place", "rtt", "sent", "sent_at", "socket")

    def __init__(self, socket: S, place: Place, lan: bool) -> None:
        self.socket = socket
        self.place = place
        self.lan = lan
        self.rtt: float | None = None  # set once the pair works
        self.sent = 0  # checks sent so far
        self.sent_at = -inf  # time of the latest check
        self.at = inf  # time of the next check
        self.dead = False  # proposed to the peer, but never confirmed

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key of a working pair; the smallest is best.

        The local network precedes the internet, IPv6 precedes IPv4, and then the round trip counts.
        """
        return not self.lan, ":" not in self.place[0], self.rtt if self.rtt is not None else inf


class Permits(Protocol):
    """Limits on the datagrams of checks."""

    def may_check(self, ip: str) -> bool:
        """Return whether checks may be sent to an IP address."""

    def spend(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent."""


class Checks(Generic[S]):
    """The connectivity checks of one side in one attempt.

    `name` is the name of the attempt, which is the same on both sides. `secret` is this side's key:
    the peer signs its checks with it. `theirs` is the peer's key: this side signs its checks with
    it. It is None until the peer's offer or reply has arrived. `permits` limits the datagrams that
    are sent. `chosen` is the pair that both sides will use, or None. Times are seconds on the
    host's clock.
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
        self.heard = 0  # authentic requests from the peer, a count
        self.refused = 0  # messages with a wrong key, from a wrong address, or repeated
        self.mapped: dict[S, Place] = {}  # at which address the peer last saw each socket
        self.proven: set[str] = set()
        """IP addresses from which the peer has replied to a check."""
        self._permits = permits
        self._entropy = entropy
        self._limits = limits
        self._pairs: dict[tuple[S, Place], _Pair[S]] = {}
        # Heap of scheduled checks: (time, order of scheduling, socket, address).
        self._queue: list[tuple[float, int, S, Place]] = []
        self._order = 0
        self._sent = 0  # checks of pairs, without shots and nominations
        self._paced_until = -inf  # no further check of a pair may be sent before this time
        # Requests without a reply, by transaction id: (socket, address, sent at, USE-CANDIDATE).
        self._pending: dict[bytes, tuple[S, Place, float, bool]] = {}
        self._requests: dict[bytes, None] = {}  # transaction ids of the peer's requests
        self._settle_at = inf  # when to choose among the working pairs
        self._choice: _Pair[S] | None = None  # the pair that is proposed to the peer
        self._nominations = 0  # requests with USE-CANDIDATE that were sent for it
        self._nominate_at = inf  # when to send the next one
        self._out: list[Send[S]] = []  # datagrams that `take` will return

    # Checks to make.

    def pair(self, socket: S, place: Place, *, at: float, lan: bool = False) -> None:
        """Schedule repeated checks of a pair for some seconds, beginning at the time `at`."""
        found = self._pairs.get((socket, place))
        if found is None:
            found = self._new_pair(socket, place, lan)
        if found is not None:
            found.sent = 0
            self._schedule(found, at)

    def shot(self, socket: S, place: Place, *, at: float) -> None:
        """Schedule a single check at the time `at`, exempt from the limit on the pace."""
        self._order += 1
        heappush(self._queue, (at, self._order, socket, place))

    def stop(self) -> None:
        """Cancel all scheduled checks. The peer's requests are still answered."""
        self._queue.clear()
        for pair in self._pairs.values():
            pair.at = inf
        self._settle_at = self._nominate_at = inf

    def _forget_shots(self) -> None:
        """Cancel all scheduled shots. Call this when the peer's first request has arrived.

        Further shots could make a router spoil a port (docs/spec/punch.md, section 4).
        """
        self._queue = [item for item in self._queue if item[2:] in self._pairs]
        heapify(self._queue)

    def _new_pair(self, socket: S, place: Place, lan: bool) -> _Pair[S] | None:
        """Create a pair. Return None if there are too many, or if `place` must not be sent to."""
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
        """The time at which to call `take` next.

        Infinity means that nothing is scheduled, or that the peer's key (`theirs`) is still
        unknown. Minus infinity means that a datagram is ready to be sent.
        """
        if self._out:
            return -inf
        if self.theirs is None:
            return inf
        queued = max(self._queue[0][0], self._held_until()) if self._queue else inf
        return min(queued, self._settle_at, self._nominate_at)

    def _held_until(self) -> float:
        """Return the time before which the first scheduled check must not be sent.

        The check of a pair must observe the limit on the pace. A shot may be sent at any time.
        """
        _, _, socket, place = self._queue[0]
        return self._paced_until if (socket, place) in self._pairs else -inf

    def take(self, now: float) -> list[Send[S]]:
        """Carry out everything that is due, and return the datagrams to send now."""
        if self.theirs is not None:
            self._check(now)
            if now >= self._settle_at:
                self._choose_best(now)
            if now >= self._nominate_at:
                self._nominate(now)
        out, self._out = self._out, []
        return out

    def _check(self, now: float) -> None:
        """Send all scheduled checks that are due."""
        while self._queue and self._queue[0][0] <= now and self._held_until() <= now:
            at, _, socket, place = heappop(self._queue)
            pair = self._pairs.get((socket, place))
            if pair is None:
                self._request(socket, place, now)
            elif pair.at == at:  # otherwise it was rescheduled
                self._check_pair(pair, now)

    def _check_pair(self, pair: _Pair[S], now: float) -> None:
        """Send a check of a pair, and schedule the next one if checks are left."""
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
        message = StunMessage(
            MessageClass.REQUEST, transaction, username=self.name, use_candidate=use
        )
        self._out.append(Send(socket, encode(message, self.theirs), place))

    # The choice.

    def _choose_best(self, now: float) -> None:
        """Begin to nominate the best working pair, if there is one and none is chosen yet."""
        self._settle_at = inf
        working = [p for p in self._pairs.values() if p.rtt is not None and not p.dead]
        if working and self.chosen is None:
            self._choice = min(working, key=lambda pair: pair.rank)
            self._nominations = 0
            self._nominate_at = now

    def _nominate(self, now: float) -> None:
        """Send the next request with USE-CANDIDATE. If too many have had no reply, give up on the
        pair and choose another."""
        pair = self._choice
        if pair is None:
            self._nominate_at = inf
        elif self._nominations >= self._limits.nominations:  # it fails: choose another pair
            pair.dead = True
            self._nominate_at = inf
            self._choose_best(now)
        else:
            self._nominations += 1
            self._nominate_at = now + self._limits.nominate_s
            self._request(pair.socket, pair.place, now, use=True)

    def _choose(self, pair: _Pair[S]) -> None:
        """Store the pair on which both sides have agreed, and stop checking."""
        self.stop()
        self.chosen = Chosen(pair.socket, pair.place, pair.rtt, pair.lan)

    # Received messages.

    def receive(
        self, message: StunMessage, data: bytes, source: Place, socket: S, now: float
    ) -> bool:
        """Process a STUN message, decoded from `data`.

        Returns False if it does not belong to this attempt.
        """
        if message.kind is MessageClass.REQUEST:
            if message.username != self.name:
                return False
            self._on_request(message, data, source, socket, now)
            return True
        sent = self._pending.get(message.transaction)
        if sent is None:
            return False
        if message.kind is MessageClass.SUCCESS:
            self._on_success(message, data, source, socket, sent, now)
        return True

    def _on_request(
        self, message: StunMessage, data: bytes, source: Place, socket: S, now: float
    ) -> None:
        """Reply to an authentic request of the peer, and check the pair on which it arrived.

        A request gets only one reply, and none if this side may not send to its source. Otherwise
        an attacker could replay the request with a forged source, and make this node send to a
        victim.
        """
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
            answer = StunMessage(MessageClass.SUCCESS, message.transaction, mapped=source)
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
        message: StunMessage,
        data: bytes,
        source: Place,
        socket: S,
        sent: tuple[S, Place, float, bool],
        now: float,
    ) -> None:
        """Process the reply to the request `sent`, which shows that its pair works.

        If the request had USE-CANDIDATE, both sides have now agreed on the pair.
        """
        asked_by, asked, sent_at, use = sent
        if self.theirs is None or (socket, source) != (asked_by, asked):
            self.refused += 1  # the reply must come from the address asked: RFC 8445, 7.2.5.2.1
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
