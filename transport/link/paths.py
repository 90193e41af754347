"""All paths of one link: chooses the path to send on, and drops dead and redundant paths."""

from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import Protocol

from .. import defaults
from ..bytestream import PathKind
from ..handshake.meeting import Identities
from ..handshake.secured import PathLost, SecureStream
from ..host.datagrams import Place
from ..lane.lane import Lane
from ..lane.meter import PathMeter
from ..lane.queueing import Yielding
from .path import LinkPath, best, is_long, redundant, worst
from .shared import Shared
from .status import PathStatus
from .writer import LaneWriter


class CarriedLink(Protocol):
    """Part of a link's interface that its paths use.

    While the link is `attended`, its paths are pinged at the usual rate, so that silence is noticed
    at once.
    """

    identities: Identities

    @property
    def attended(self) -> bool: ...

    def retime(self) -> None: ...

    def look_again(self) -> None: ...

    def wrote(self) -> None: ...


class LinkPaths:
    """The paths of one link. Frames are sent on the best path whose peer replies.

    `used` is the path on which this side sends; None if there is none. `address` is the remote
    address of that path, or of the last one. `due` is the time at which a path needs the next tick;
    infinity if there is no path. `heard` is the time at which the last byte arrived on a path that
    has been dropped. Times are seconds on the host's clock.
    """

    def __init__(
        self,
        shared: Shared,
        lane: Lane,
        link: CarriedLink,
    ) -> None:
        self.used: LinkPath | None = None
        self.address: Place = ("", 0)
        self.due = inf
        self.heard = shared.host.now()
        self.silent = False  # whether the last path was dropped because it was silent
        self.broken = False  # whether the last path was closed by the other end
        self.lapsed = False  # whether the last path was a circuit that reached its time limit
        self.places: dict[str, tuple[int, int]] = {}
        """The IP addresses at which the peer was last seen on a path without a relay, in order of
        time, each with the peer's TCP and UDP port there (0 if unknown)."""
        self._host = shared.host
        self._lane = lane
        self._link = link
        self._identities = link.identities
        self._rest_s = 0.0  # seconds of silence until a ping while unattended; 0: the usual time
        self._shaper = shared.shaper
        self._paths: list[LinkPath] = []
        self._new = True  # whether no path has been attached yet
        self._hurry = False  # whether the path in use is silent with frames in flight
        self._bytes_in = 0  # bytes received on dropped paths
        self._bytes_out = 0  # bytes sent on dropped paths

    def __iter__(self) -> Iterator[LinkPath]:
        """Return an iterator over the paths."""
        return iter(self._paths)

    # State.

    @property
    def connected(self) -> bool:
        """Whether there is a path in use, or the first one has not been attached yet."""
        return self.used is not None or self._new

    @property
    def missing(self) -> bool:
        """Whether there is no path."""
        return not self._paths

    @property
    def is_long(self) -> bool:
        """Whether the round trip is so long that UDP is faster than TCP."""
        return is_long(self._paths)

    @property
    def bytes_in(self) -> int:
        """Bytes received on all paths, including dropped ones."""
        return self._bytes_in + sum(path.secured.bytes_in for path in self._paths)

    @property
    def bytes_out(self) -> int:
        """Bytes sent on all paths, including dropped ones."""
        return self._bytes_out + sum(path.secured.bytes_out for path in self._paths)

    @property
    def udp_place(self) -> Place | None:
        """The probable address of the peer's UDP port: the IP address at which this side dialled
        the peer's TCP port, with the UDP port that the peer's hello names.

        None if this side did not dial the peer, if the path in use is not a TCP connection of the
        kinds loopback, LAN or direct, or if there is a UDP path already.
        """
        path, port = self.used, self._identities.udp_port
        if path is None or not port or not self._identities.dialled or path.secured.medium != "tcp":
            return None
        if path.path_kind.rank > PathKind.DIRECT.rank or any(
            x.secured.medium == "udp" for x in self._paths
        ):
            return None
        return path.secured.address[0], port

    def seen(self) -> dict[str, tuple[int, int]]:
        """Return the IP addresses at which this node sees the peer on paths without a relay, the
        latest last.

        Each is mapped to the peer's TCP and UDP port there (0 if unknown).
        """
        found: dict[str, tuple[int, int]] = {}
        for path in self._paths:
            ip, port = path.secured.address
            if path.path_kind is PathKind.RELAYED or not ip:
                continue
            tcp, udp = found.get(ip, (0, 0))
            found[ip] = (port, udp) if path.secured.medium == "tcp" else (tcp, port)
        return found

    def statuses(self) -> tuple[PathStatus, ...]:
        """Return the status of each path, for display."""
        return tuple(
            PathStatus(
                path.path_kind,
                path.secured.medium,
                path.secured.address,
                path.connection.rtt,
                path is self.used,
                not path.secured.tls.server,
            )
            for path in self._paths
        )

    def is_suspect(self, now: float) -> bool:
        """Return whether to search for another path although the path in use has not been dropped.

        That is so if it has been silent since the network changed or this machine slept, or if it
        is a relayed path with a long silence, because its relay may have died. A direct path that
        is merely slow does not justify a search.
        """
        path = self.used
        if path is None or not path.connection.is_doubtful(now):
            return False
        long = now >= path.connection.heard + defaults.SUSPECT_S
        return path.connection.unseen or (long and path.path_kind is PathKind.RELAYED)

    # Adding and dropping paths.

    def attach(self, secured: SecureStream, path_kind: PathKind) -> LinkPath:
        """Add an authenticated path, and return it. If the link then has too many paths, drop the
        worst one, which may be the new path."""
        now = self._host.now()
        # A loopback path has no modem that buffers: delay means a busy processor, not a queue.
        yielding = None
        if path_kind is not PathKind.LOOPBACK:
            yielding = Yielding(now, packet_rtt=secured.packet_rtt)
        connection = self._lane.attach(now, yielding)
        meter = None
        if self._shaper is not None and not secured.inside:  # the outer link has a meter already
            meter = PathMeter(self._shaper)
        writer = LaneWriter(self._host, self._lane, connection, secured, self._wrote, meter)
        path = LinkPath(secured, path_kind, connection, writer, now, meter)
        self._paths.append(path)
        self._note_place(path)
        self._new = self.silent = self.broken = self.lapsed = False
        self._choose(now)
        self._tick_at(now)
        if len(self._paths) > defaults.LEGS:
            self._drop(worst(self._paths, self.used))
        return path

    def _note_place(self, path: LinkPath) -> None:
        """Store the peer's address on a path in `places`, unless the path is relayed."""
        (ip, port), medium = path.secured.address, path.secured.medium
        if path.path_kind is PathKind.RELAYED or not ip:
            return
        tcp, udp = self.places.pop(ip, (0, 0))
        self.places[ip] = (port, udp) if medium == "tcp" else (tcp, port)
        if len(self.places) > defaults.LEGS:
            del self.places[next(iter(self.places))]

    def has(self, path: LinkPath) -> bool:
        """Return whether a path belongs to this link and has not been dropped."""
        return path in self._paths

    def lose(self, path: LinkPath) -> None:
        """Drop a path that the other end has closed."""
        if path in self._paths:
            self.broken = True
            self.lapsed = path.secured.lapsed
            self._drop(path)

    def _drop(self, path: LinkPath) -> None:
        """Remove and close a path. If it was in use, choose another one."""
        self._paths.remove(path)
        path.connection.forgive(self._host.now())
        self.heard = max(self.heard, path.connection.heard)
        self._bytes_in += path.secured.bytes_in
        self._bytes_out += path.secured.bytes_out
        path.secured.close()
        if path.meter is not None:
            path.meter.leave()
        self._lane.detach(path.connection)
        if path is self.used:
            self.used = None
            self._choose(self._host.now())
            self._link.look_again()

    def end(self) -> None:
        """Send the lane's last frame (GOAWAY), and drop all paths."""
        self._say_goodbye()
        for path in list(self._paths):
            self._drop(path)

    def _say_goodbye(self) -> None:
        """Send the last frame on the path in use, or else on another one that is not blocked."""
        for path in sorted(self._paths, key=lambda path: path is not self.used):
            if path.secured.blocked or not (
                words := self._lane.take(path.connection, 1 << 16, self._host.now())
            ):
                continue
            with suppress(PathLost):
                path.secured.send(words)
                path.secured.finish()
                self._paths.remove(path)  # the task that reads from the path closes it
                self._lane.detach(path.connection)
                if path is self.used:
                    self.used = None
                return

    # Choice of the path to send on.

    def flush(self, *, at_once: bool = False, now: float | None = None) -> None:
        """Send waiting frames on the path in use, as many as it accepts (`LaneWriter.flush`)."""
        if self.used is not None:
            self.used.writer.flush(at_once=at_once, now=now)

    def flush_within(self, seconds: float) -> None:
        """Send waiting frames after so many seconds, or earlier together with others."""
        if self.used is not None:
            self.used.writer.flush_within(seconds)

    def flush_by(self, at: float) -> None:
        """Schedule a tick at the time `at` or earlier, so that waiting frames leave by then."""
        if self.used is not None and at < self.used.due:
            self.used.due = at
            self._tick_at(at)

    def look(self) -> None:
        """Send a ping on every path at once. Call this when the network may have changed."""
        now = self._host.now()
        for path in self._paths:
            path.connection.look(now)
            path.due = now
            path.writer.flush()
        self._tick_at(now)

    def rest(self, seconds: float) -> None:
        """Set the seconds of silence until a ping while the link is unattended. 0 means the usual
        time."""
        sooner, self._rest_s = seconds < self._rest_s, seconds
        if sooner and self.used is not None:
            self.used.due = self._host.now()
            self._tick_at(self.used.due)

    def _idle_s(self) -> float:
        """Return the seconds of silence until the path in use is pinged."""
        if not self._rest_s or self._link.attended:
            return self._lane.idle_s
        return max(self._lane.idle_s, self._rest_s)

    def tick(self, now: float) -> None:
        """Send pings on paths that have been silent for some time, and drop those without a
        reply."""
        paths = self._paths
        for path in list(paths):
            if path.due <= now:
                self._tick_one(path, now)
        used = self.used
        self._hurry = used is not None and used.connection.is_overdue(now)
        if used is not None and self._hurry:
            self._ask_others(used, now)
        if len(paths) == 1 and paths[0] is used:  # shortcut for the usual case
            self.due = used.due
            return
        self._choose(now)
        if (
            len(paths) > 1 and self._identities.dialled
        ):  # if both sides chose, both could be dropped
            for path in redundant(paths, self.used, now):
                self._drop(path)
        self.due = min([path.due for path in paths], default=inf)

    def ease(self, path: LinkPath) -> None:
        """Put off the tick of the only path after a ping or pong has arrived, if nothing else is
        due."""
        if path is not self.used or len(self._paths) > 1 or path.writer.has_output:
            return
        path.connection.idle_s = self._idle_s()
        due = path.connection.ease(path.due)
        if due > path.due:
            path.due = self.due = due
            self._link.retime()

    def _tick_one(self, path: LinkPath, now: float) -> None:
        """Send what is due on one path, or drop the path if its peer has been silent for too
        long."""
        if path.meter is not None and path.meter.paused:
            path.connection.heard = now
        if path is self.used:
            path.connection.idle_s = self._idle_s()
        path.due = path.connection.tick(now)
        path.secured.tls.release()
        if path.connection.is_silent(now):
            self.silent = True
            self.broken = self.lapsed = False
            self._drop(path)
        elif path.writer.has_output:
            path.writer.flush()

    def heard_beside(self, path: LinkPath, now: float, *, frames: bool) -> None:
        """Process the arrival of bytes on a path other than the one in use.

        `frames` says whether they contained calls or stream data, and not only pings and
        acknowledgements.
        """
        if self.used is None:
            return
        if self._hurry:
            self._tick_at(now)
        if frames:
            self._preferred(path, now)
        self.used.writer.flush(at_once=True)

    def _tick_at(self, at: float) -> None:
        """Schedule a tick at the time `at` or earlier."""
        if at < self.due:
            self.due = at
            self._link.retime()

    def _wrote(self) -> None:
        """Schedule the next tick early enough to notice if the frames in flight get no
        acknowledgement."""
        if (path := self.used) is not None:
            at = path.connection.look_at(self._host.now())
            if at < path.due:
                path.due = at
                self._tick_at(at)
        self._link.wrote()

    def _ask_others(self, used: LinkPath, now: float) -> None:
        """Send pings on the other paths, because the path in use is silent.

        Its failure may affect the other paths as well. Once one path has had a reply, the silent
        ones get only a short time to reply.
        """
        used.connection.ping_soon(now)
        silent = [path for path in self._paths if not used.connection.is_outrun(path.connection)]
        for path in silent:
            if len(silent) < len(self._paths):
                path.connection.hint(now)
            else:
                path.connection.ping_soon(now)
            path.due = now
            path.writer.flush()

    def _choose(self, now: float) -> None:
        """Switch to the best path, if it is not in use already."""
        path = best(self._paths, now, self.used)
        if path is None or path is self.used:
            return
        before, self.used = self.used, path
        self.address = path.secured.address
        path.connection.idle_s = self._lane.idle_s
        if before is not None:
            before.connection.idle_s = max(self._lane.idle_s, defaults.STANDBY_S)
        self._lane.use(path.connection)
        path.writer.flush()

    def _preferred(self, path: LinkPath, now: float) -> None:
        """Handle frames that the peer sent on a path other than the one in use here.

        The peer may have found that the path in use here does not work, so this side checks it with
        a ping. If several paths are equally good, the listening side switches to the peer's choice,
        because the failure of a path is noticed at once if it carries both directions.
        """
        if not self._identities.dialled:
            path.wanted = now
            self._choose(now)
        if self.used is path:
            return
        for ours in self._paths:
            if ours.path_kind.rank < path.path_kind.rank:  # the peer does not use this better one
                ours.connection.hint(now)
            elif ours is self.used:
                ours.connection.ping_soon(now)
            else:
                continue
            ours.due = now
            self._tick_at(now)
