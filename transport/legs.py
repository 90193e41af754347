"""The paths that a link has, and by which of them it sends."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf

from . import defaults
from .datagrams import Place
from .host import Host
from .lane import Lane
from .leg import Leg, best, is_long, redundant, worst
from .linkstatus import Identities, LegStatus
from .meter import Meter
from .path import Path, PathLost
from .pipe import Way
from .queueing import Yielding
from .shaper import Shaper
from .writer import Writer


class Legs:
    """One link's legs: it sends by the best that answers, and leaves one that falls silent.

    `used` is the one that carries what this side sends, `address` where it leads or led; `due` is
    when one of them wants the next tick, `heard` when the last byte came over those that are gone.
    """

    def __init__(
        self,
        host: Host,
        lane: Lane,
        identities: Identities,
        *,
        due: Callable[[], None],
        lost: Callable[[], None],
        sent: Callable[[], None],
        attended: Callable[[], bool],
        shaper: Shaper | None = None,
    ) -> None:
        """`due` is called when a tick is wanted sooner than it was, `lost` when the leg in use has
        ended, `sent` when bytes have left. While `attended` returns true, the link does not rest.
        `shaper` holds the node's caps."""
        self.used: Leg | None = None
        self.address: Place = ("", 0)
        self.due = inf
        self.heard = host.now()
        self.silent = False  # the last one was left because nothing came
        self.broken = False  # the last one was closed by the other end, not lost in silence
        self.lapsed = False  # it was a circuit that its relay lent for no longer
        self.places: dict[str, tuple[int, int]] = {}
        """The IP addresses at which the peer was last seen on paths without a relay, the latest
        last, with its TCP and its UDP port there; 0: not known."""
        self._host = host
        self._lane = lane
        self._identities = identities
        self._tell_due = due
        self._tell_lost = lost
        self._tell_sent = sent
        self._attended = attended
        self._rest_s = 0.0
        self._shaper = shaper
        self._legs: list[Leg] = []
        self._new = True  # none has come yet
        self._hurry = False  # the one in use has gone quiet with frames under way
        self._bytes_in = 0  # over those that are gone
        self._bytes_out = 0

    def __iter__(self) -> Iterator[Leg]:
        return iter(self._legs)

    # What it is asked for.

    @property
    def connected(self) -> bool:
        """Whether there is one, or the first is just about to come."""
        return self.used is not None or self._new

    @property
    def missing(self) -> bool:
        """Whether there is none."""
        return not self._legs

    @property
    def is_long(self) -> bool:
        """Whether the round trip is one at which UDP serves better than TCP."""
        return is_long(self._legs)

    @property
    def bytes_in(self) -> int:
        """Over all that there were."""
        return self._bytes_in + sum(leg.path.bytes_in for leg in self._legs)

    @property
    def bytes_out(self) -> int:
        """Over all that there were."""
        return self._bytes_out + sum(leg.path.bytes_out for leg in self._legs)

    @property
    def udp_place(self) -> Place | None:
        """Where the peer's UDP port should be: at the address where this side dialled its TCP
        port; None where that was not so, or a UDP path is there."""
        leg, port = self.used, self._identities.udp_port
        if leg is None or not port or not self._identities.dialled or leg.path.medium != "tcp":
            return None
        if leg.way.rank > Way.DIRECT.rank or any(x.path.medium == "udp" for x in self._legs):
            return None
        return leg.path.address[0], port

    def statuses(self) -> tuple[LegStatus, ...]:
        """Figures for a person."""
        return tuple(
            LegStatus(
                leg.way,
                leg.path.medium,
                leg.path.address,
                leg.connection.rtt,
                leg is self.used,
                not leg.path.tls.server,
            )
            for leg in self._legs
        )

    def is_suspect(self, now: float) -> bool:
        """Whether to look for another path before this one is given up: it has not been heard
        since the network changed or this machine slept, or its relay may be gone. A peer that
        is merely slow is not dialled for it."""
        leg = self.used
        if leg is None or not leg.connection.is_doubtful(now):
            return False
        long = now >= leg.connection.heard + defaults.SUSPECT_S
        return leg.connection.unseen or (long and leg.way is Way.RELAYED)

    # Coming and going.

    def attach(self, path: Path, way: Way) -> Leg:
        """A further path, proven to be the peer's. One too many goes, perhaps this."""
        now = self._host.now()
        # On this machine no modem buffers, and what looks like a queue is a busy processor.
        yielding = None if way is Way.LOOPBACK else Yielding(now)
        connection = self._lane.attach(now, yielding)
        meter = None
        if self._shaper is not None and not path.inside:  # else the link outside has one
            meter = Meter(self._shaper)
        writer = Writer(self._host, self._lane, connection, path, self._wrote, meter)
        leg = Leg(path, way, connection, writer, now, meter)
        self._legs.append(leg)
        self._note_place(leg)
        self._new = self.silent = self.broken = self.lapsed = False
        self._choose(now)
        self._tick_at(now)
        if len(self._legs) > defaults.LEGS:
            self._drop(worst(self._legs, self.used))
        return leg

    def _note_place(self, leg: Leg) -> None:
        (ip, port), medium = leg.path.address, leg.path.medium
        if leg.way is Way.RELAYED or not ip:
            return
        tcp, udp = self.places.pop(ip, (0, 0))
        self.places[ip] = (port, udp) if medium == "tcp" else (tcp, port)
        if len(self.places) > defaults.LEGS:
            del self.places[next(iter(self.places))]

    def has(self, leg: Leg) -> bool:
        """Whether it has not been dropped."""
        return leg in self._legs

    def lose(self, leg: Leg) -> None:
        """The other end has closed it."""
        if leg in self._legs:
            self.broken = True
            self.lapsed = leg.path.lapsed
            self._drop(leg)

    def _drop(self, leg: Leg) -> None:
        """It is lost, or there is one too many."""
        self._legs.remove(leg)
        leg.connection.forgive(self._host.now())
        self.heard = max(self.heard, leg.connection.heard)
        self._bytes_in += leg.path.bytes_in
        self._bytes_out += leg.path.bytes_out
        leg.path.close()
        if leg.meter is not None:
            leg.meter.leave()
        self._lane.detach(leg.connection)
        if leg is self.used:
            self.used = None
            self._choose(self._host.now())
            self._tell_lost()

    def end(self) -> None:
        """Send what the lane says last, and drop all."""
        self._say_goodbye()
        for leg in list(self._legs):
            self._drop(leg)

    def _say_goodbye(self) -> None:
        """On the leg that carries the link, or another that takes the words."""
        for leg in sorted(self._legs, key=lambda leg: leg is not self.used):
            if leg.path.blocked or not (
                words := self._lane.take(leg.connection, 1 << 16, self._host.now())
            ):
                continue
            with suppress(PathLost):
                leg.path.send(words)
                leg.path.finish()
                self._legs.remove(leg)  # who reads it closes it
                self._lane.detach(leg.connection)
                if leg is self.used:
                    self.used = None
                return

    # Which one to send by.

    def flush(self, *, at_once: bool = False, now: float | None = None) -> None:
        """Send what waits, as far as that goes (`Writer.flush`)."""
        if self.used is not None:
            self.used.writer.flush(at_once=at_once, now=now)

    def flush_by(self, at: float) -> None:
        """Send what waits at this time at the latest."""
        if self.used is not None and at < self.used.due:
            self.used.due = at
            self._tick_at(at)

    def look(self) -> None:
        """Something about the network has changed: ask every leg for a sign of life."""
        now = self._host.now()
        for leg in self._legs:
            leg.connection.look(now)
            leg.due = now
            leg.writer.flush()
        self._tick_at(now)

    def rest(self, seconds: float) -> None:
        """Set the seconds of silence until a ping, 0 for the usual time."""
        sooner, self._rest_s = seconds < self._rest_s, seconds
        if sooner and self.used is not None:
            self.used.due = self._host.now()
            self._tick_at(self.used.due)

    def _idle_s(self) -> float:
        """Return the seconds of silence until the leg in use is pinged."""
        if not self._rest_s or self._attended():
            return self._lane.idle_s
        return max(self._lane.idle_s, self._rest_s)

    def tick(self, now: float) -> None:
        """Ping where it is quiet, leave what is silent."""
        legs = self._legs
        for leg in list(legs):
            if leg.due <= now:
                self._tick_one(leg, now)
        used = self.used
        self._hurry = used is not None and used.connection.is_overdue(now)
        if used is not None and self._hurry:
            self._ask_others(used, now)
        if len(legs) == 1 and legs[0] is used:  # as nearly always
            self.due = used.due
            return
        self._choose(now)
        if len(legs) > 1 and self._identities.dialled:  # one side alone, or both are dropped
            for leg in redundant(legs, self.used, now):
                self._drop(leg)
        self.due = min([leg.due for leg in legs], default=inf)

    def _tick_one(self, leg: Leg, now: float) -> None:
        if leg.meter is not None and leg.meter.paused:
            leg.connection.heard = now
        if leg is self.used:
            leg.connection.idle_s = self._idle_s()
        leg.due = leg.connection.tick(now)
        leg.path.tls.release()
        if leg.connection.is_silent(now):
            self.silent = True
            self.broken = self.lapsed = False
            self._drop(leg)
        elif leg.writer.has_output:
            leg.writer.flush()

    def heard_beside(self, leg: Leg, now: float, *, frames: bool) -> None:
        """Something has come by one that is not in use; `frames`: calls or streams, not only
        signs of life."""
        if self.used is None:
            return
        if self._hurry:
            self._tick_at(now)
        if frames:
            self._preferred(leg, now)
        self.used.writer.flush(at_once=True)

    def _tick_at(self, at: float) -> None:
        if at < self.due:
            self.due = at
            self._tell_due()

    def _wrote(self) -> None:
        """What is under way now does not wait for the look at an idle link."""
        if (leg := self.used) is not None:
            at = leg.connection.look_at(self._host.now())
            if at < leg.due:
                leg.due = at
                self._tick_at(at)
        self._tell_sent()

    def _ask_others(self, used: Leg, now: float) -> None:
        """Nothing comes by the one in use: what cuts it may have cut others, too. Where one of
        them is answered, the rest has little time left."""
        used.connection.ping_soon(now)
        silent = [leg for leg in self._legs if not used.connection.is_outrun(leg.connection)]
        for leg in silent:
            if len(silent) < len(self._legs):
                leg.connection.hint(now)
            else:
                leg.connection.ping_soon(now)
            leg.due = now
            leg.writer.flush()

    def _choose(self, now: float) -> None:
        """Send by the best leg."""
        leg = best(self._legs, now, self.used)
        if leg is None or leg is self.used:
            return
        before, self.used = self.used, leg
        self.address = leg.path.address
        leg.connection.idle_s = self._lane.idle_s
        if before is not None:
            before.connection.idle_s = max(self._lane.idle_s, defaults.STANDBY_S)
        self._lane.use(leg.connection)
        leg.writer.flush()

    def _preferred(self, leg: Leg, now: float) -> None:
        """The peer sends by another one than we: does ours work? Of equals the side that was
        dialled takes the other's choice: one that carries both ways shows at once when it dies."""
        if not self._identities.dialled:
            leg.wanted = now
            self._choose(now)
        if self.used is leg:
            return
        for ours in self._legs:
            if ours.way.rank < leg.way.rank:  # it has found none of these to be better
                ours.connection.hint(now)
            elif ours is self.used:
                ours.connection.ping_soon(now)
            else:
                continue
            ours.due = now
            self._tick_at(now)
