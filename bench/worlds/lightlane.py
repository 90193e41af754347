"""Messages of any size between light nodes, as a lane over TCP would carry them, without either.

A message is split into parts of one packet each. The window of parts in flight opens while nothing
is lost and shrinks on a loss. A part is sent again when three parts sent after it have arrived, or
when it has not been acknowledged within two round trips. Sizes, round trips and losses are those of
the network; contents are not encoded.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Final

from shoal.netsim.network.packet import Addr

from .ringnode import PAYLOAD, Parcel, parcel

FRAME_BYTES: Final = 60
"""Bytes of a message besides its payload: a lane's frame and its method."""
TLS_BYTES: Final = 52  # per packet: TLS, and the part of TCP's header that UDP does not have
ACK_BYTES: Final = 12
SAID_AGAIN: Final = 4
"""Parts named in each acknowledgement: if one acknowledgement is lost, the next repeats it."""
FIRST_RTO_S: Final = 1.0
"""RFC 6298, 2.1. With a shorter timeout, everything sent to a peer behind a satellite would be sent
twice, forever: a part that was sent twice gives no round trip.
"""
LEAST_RTO_S: Final = 0.2
WINDOW: Final = (10.0, 256.0)
"""Packets in flight: initial window and maximum."""
SHRINK: Final = 0.7  # factor for the window after a loss, Linux's default
PASSED: Final = 3
"""Parts sent after a missing one that have to arrive before it counts as lost."""
SILENT_S: Final = 15.0
"""Seconds without a sign of life until a peer counts as dead."""
_DONE: Final = 4_096


@dataclass(slots=True)
class _Part:
    key: tuple[int, int]  # message and index
    data: Parcel
    sent: float = 0.0
    order: int = 0  # position in the order in which its flow sent parts
    tries: int = 0


@dataclass(slots=True)
class _Flow:
    """State of sending to one address."""

    waiting: deque[_Part] = field(default_factory=deque)
    flying: dict[tuple[int, int], _Part] = field(default_factory=dict)  # in the order of sending
    order: int = 0
    passed: int = 0  # the latest part, in that order, that was acknowledged
    window: float = WINDOW[0]
    slow: float = inf  # window from which it grows more slowly
    rtt: float | None = None
    shrunk: float = -inf
    heard: float = 0.0
    due: float = inf

    @property
    def rto(self) -> float:
        return FIRST_RTO_S if self.rtt is None else max(LEAST_RTO_S, 2 * self.rtt)


class LightLane:
    """One node's messages. Calls `came(message, source)`, and `lost(address)` for a dead peer."""

    def __init__(
        self,
        came: Callable[[Any, Addr], None],
        lost: Callable[[Addr], None],
    ) -> None:
        self._came = came
        self._lost = lost
        self._flows: dict[Addr, _Flow] = {}
        self._busy: dict[Addr, _Flow] = {}  # with parts in flight
        self._number = 0
        self._partial: dict[tuple[Addr, int], set[int]] = {}
        self._done: OrderedDict[tuple[Addr, int], None] = OrderedDict()
        self._come: dict[Addr, deque[tuple[int, int]]] = {}  # the latest parts from each address
        self.out: list[tuple[bytes, Addr]] = []
        self.sent = 0
        """Bytes of messages' payloads sent so far."""
        self.messages = 0

    def send(self, now: float, to: Addr, size: int, message: Any) -> None:
        """Send a message whose payload has `size` bytes."""
        self.sent += size
        self.messages += 1
        size += FRAME_BYTES
        self._number += 1
        flow = self._flows.get(to)
        if flow is None:
            flow = self._flows[to] = _Flow(heard=now)
        if not flow.flying and not flow.waiting:
            flow.heard = now
        count = ceil(size / PAYLOAD)
        for index in range(count):
            length = min(PAYLOAD, size - index * PAYLOAD) + TLS_BYTES
            data = parcel(length, ("part", self._number, index, count, message))
            flow.waiting.append(_Part((self._number, index), data))
        self._fill(now, to, flow)

    def take(self, now: float, message: tuple[Any, ...], source: Addr) -> None:
        """Process a part or an acknowledgement that has arrived."""
        if message[0] == "ack":
            self._acked(now, message[1], source)
            return
        _, number, index, count, body = message
        come = self._come.setdefault(source, deque(maxlen=SAID_AGAIN))
        come.append((number, index))
        self.out.append((parcel(ACK_BYTES, ("ack", (*come,))), source))
        key = source, number
        if key in self._done:
            return
        if count > 1:
            parts = self._partial.setdefault(key, set())
            parts.add(index)
            if len(parts) < count:
                return
            del self._partial[key]
        self._done[key] = None
        if len(self._done) > _DONE:
            self._done.popitem(last=False)
        self._came(body, source)

    def _acked(self, now: float, keys: tuple[tuple[int, int], ...], source: Addr) -> None:
        flow = self._flows.get(source)
        if flow is None:
            return
        flow.heard = now
        for key in keys:
            part = flow.flying.pop(key, None)
            if part is None:
                continue
            if part.tries == 1:
                if key == keys[-1]:  # the others arrived earlier
                    took = now - part.sent
                    flow.rtt = took if flow.rtt is None else 0.875 * flow.rtt + 0.125 * took
                flow.passed = max(flow.passed, part.order)
            flow.window += 1 if flow.window < flow.slow else 1 / flow.window
            flow.window = min(flow.window, WINDOW[1])
        while (first := next(iter(flow.flying.values()), None)) is not None and (
            first.order + PASSED <= flow.passed
        ):
            self._again(now, source, flow, first)
        self._fill(now, source, flow)

    def _fill(self, now: float, to: Addr, flow: _Flow) -> None:
        while flow.waiting and len(flow.flying) < flow.window:
            self._fly(now, to, flow, flow.waiting.popleft())
        self._set_due(to, flow, now)

    def _set_due(self, to: Addr, flow: _Flow, now: float) -> None:
        if flow.flying:
            flow.due = now + flow.rto
            self._busy[to] = flow
        else:
            flow.due = inf
            self._busy.pop(to, None)

    def _fly(self, now: float, to: Addr, flow: _Flow, part: _Part) -> None:
        flow.order += 1
        part.sent, part.order, part.tries = now, flow.order, part.tries + 1
        flow.flying[part.key] = part
        self.out.append((part.data, to))

    def _again(self, now: float, to: Addr, flow: _Flow, part: _Part) -> None:
        del flow.flying[part.key]
        self._fly(now, to, flow, part)
        if now - flow.shrunk > flow.rto:
            flow.shrunk = now
            flow.window = flow.slow = max(2.0, SHRINK * flow.window)

    def forget(self, to: Addr) -> None:
        """Drop what waits to be sent to `to`: the link has ended."""
        self._flows.pop(to, None)
        self._busy.pop(to, None)
        self._come.pop(to, None)

    def longest(self) -> float:
        """Return the longest round trip in seconds, 0 if none is known."""
        return max((flow.rtt for flow in self._flows.values() if flow.rtt), default=0.0)

    def due(self) -> float:
        """Return when `tick` should be called next."""
        return min((flow.due for flow in self._busy.values()), default=inf)

    def tick(self, now: float) -> None:
        """Send again the parts that were not acknowledged in time."""
        for to, flow in list(self._busy.items()):
            if flow.due > now:
                continue
            if now - flow.heard > SILENT_S:
                self.forget(to)
                self._lost(to)
                continue
            for part in list(flow.flying.values()):
                if now - part.sent >= flow.rto * 2 ** min(part.tries - 1, 4) - 1e-9:
                    self._again(now, to, flow, part)
            self._set_due(to, flow, now)
