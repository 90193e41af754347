"""Two lane cores connected in memory: random fragmentation, cuts and resumptions. No I/O."""

import random
from collections import defaultdict

from shoal.transport.lane.connection import LaneConnection
from shoal.transport.lane.events import (
    Answered,
    Called,
    Cancelled,
    Ended,
    Event,
    GrantedLimits,
    Opened,
    StreamReady,
)
from shoal.transport.lane.frame import Priority
from shoal.transport.lane.lane import Lane
from shoal.transport.lane.outbox import OutCall
from shoal.transport.lane.stream import LaneStream
from shoal.transport.limits import Limits

SMALL = Limits(
    message_bytes=1 << 20, stream_window_bytes=20_000, link_window_bytes=50_000, streams=8
)


def windows(limits: Limits) -> GrantedLimits:
    return GrantedLimits(limits.stream_window_bytes, limits.link_window_bytes, limits.streams)


class Side:
    """A core, and a shell that records its events. Calls are echoed unless `mute`."""

    def __init__(self, *, dialled: bool, limits: Limits = SMALL, peer: Limits = SMALL) -> None:
        self.lane = Lane(dialled=dialled, limits=limits, remote=windows(peer), now=0.0)
        self.connection: LaneConnection | None = None
        self.mute = False
        self.called: list[Called] = []
        self.answers: dict[OutCall, Answered] = {}
        self.answer_count: defaultdict[OutCall, int] = defaultdict(int)
        self.cancelled: list[int] = []
        self.streams: list[LaneStream] = []
        self.received: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.ended: Ended | None = None
        self.reading = True

    @property
    def wire(self) -> LaneConnection:
        """The connection that carries the lane."""
        assert self.connection is not None
        return self.connection

    def attach(self, now: float = 0.0) -> None:
        self.connection = self.lane.attach(now)

    def detach(self) -> None:
        if self.connection is not None:
            self.lane.detach(self.connection)
            self.connection = None

    def take(self, room: int) -> bytes:
        return b"" if self.connection is None else self.lane.take(self.connection, room, 0.0)

    def receive(self, data: bytes, now: float = 0.0) -> list[Event]:
        return self.lane.receive(self.wire, data, now)

    def take_in(self, data: bytes, now: float = 0.0) -> None:
        for event in self.receive(data, now):
            self._on(event)

    def _on(self, event: Event) -> None:
        match event:
            case Called():
                self.called.append(event)
                if not event.post and not self.mute:
                    self.lane.reply(event.ident, event.header, event.payload, event.priority)
            case Answered():
                self.answers[event.call] = event
                self.answer_count[event.call] += 1
            case Cancelled():
                self.cancelled.append(event.ident)
            case Opened():
                self.streams.append(event.stream)
            case StreamReady():
                self.read(event.stream)
            case Ended():
                self.ended = event

    def read(self, stream: LaneStream, limit: int = 1 << 20) -> None:
        while self.reading and (data := self.lane.read(stream, limit)):
            self.received[stream.ident] += data


class Pair:
    """Two ends and the bytes between them. `cut` loses the bytes in flight."""

    def __init__(
        self, *, limits: Limits = SMALL, rng: random.Random | None = None, attach: bool = True
    ) -> None:
        self.rng = rng or random.Random(0)
        self.a = Side(dialled=True, limits=limits, peer=limits)
        self.b = Side(dialled=False, limits=limits, peer=limits)
        self.wires = {True: bytearray(), False: bytearray()}  # towards b, towards a
        if attach:
            self.attach()

    def attach(self, now: float = 0.0) -> None:
        for side in (self.a, self.b):
            side.attach(now)

    def cut(self) -> None:
        for side in (self.a, self.b):
            side.detach()
        for wire in self.wires.values():
            wire.clear()

    def step(self, room: int = 1 << 18, most: int | None = None, now: float = 0.0) -> bool:
        """Move some bytes each way. Return whether any moved."""
        moved = False
        for forward, source, target in ((True, self.a, self.b), (False, self.b, self.a)):
            wire = self.wires[forward]
            wire += source.take(room)
            count = len(wire) if most is None else min(len(wire), self.rng.randint(0, most))
            if count:
                data = bytes(wire[:count])
                del wire[:count]
                target.take_in(data, now)
            moved |= bool(wire) or count > 0
        return moved

    def settle(self, now: float = 0.0) -> None:
        """Deliver until nothing moves."""
        while self.step(now=now):
            pass


def some_bytes(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(size)


PRIORITIES = tuple(Priority)
