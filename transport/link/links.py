"""Registry of a node's links, at most one to each peer. Reports changes of their state."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import floor, inf

import trio

from .. import defaults
from ..bytestream import PathKind
from ..errors import MISHAP
from ..handshake.meeting import Connected
from ..identity import PeerId
from ..networks import networks
from .callers import Alarm
from .link import Link
from .shared import Shared

Told = Callable[[Link], None]


@dataclass(slots=True)
class Listeners:
    """Callbacks of a node's components about its links.

    The methods of `Endpoint` that register them (`on_link` and others) describe when each is
    called.
    """

    up: list[Told] = field(default_factory=list)
    lost: list[Callable[[Link, str], None]] = field(default_factory=list)
    path: list[Callable[[Link, PathKind, str], None]] = field(default_factory=list)
    quiet: list[Told] = field(default_factory=list)
    back: list[Told] = field(default_factory=list)
    doubt: list[Callable[[Link, bool], None]] = field(default_factory=list)
    lasting: list[Told] = field(default_factory=list)
    much: list[Told] = field(default_factory=list)
    holders: list[Callable[[PeerId], bool]] = field(default_factory=list)
    watchers: list[Callable[[PeerId], bool]] = field(default_factory=list)


class Links:
    """All links of a node. Decides which connections become links, and runs each link in a task."""

    def __init__(
        self,
        peer: PeerId,
        incarnation: bytes,
        shared: Shared,
        rescue: Callable[[Link], Awaitable[str | None]],
    ) -> None:
        """`rescue(link)` searches for a new path for a link that has no path left (see
        `LinkOwner.rescue`)."""
        self.handlers = shared.handlers
        self.listeners = Listeners()
        self.briefly: Counter[PeerId] = Counter()  # dials to each peer for a few questions only
        self.news = trio.lowlevel.ParkingLot()  # woken when a link comes up or a dial ends
        self._shared = shared
        self._host = host = shared.host
        self._peer = peer
        self._incarnation = incarnation
        self._limits = shared.limits
        self._rescue = rescue
        self._guard = shared.guard
        self._alarm = Alarm(host, self._expire)
        self._ticks = Alarm(host, self._tick)
        # Heap of scheduled ticks: (time, order of scheduling, `Link.due` at that moment, link).
        self._turns: list[tuple[float, int, float, Link]] = []
        self._number = count()
        self._began = 0.0
        self._links: dict[PeerId, Link] = {}
        self._proving: dict[PeerId, trio.Event] = {}  # dials that exchange hellos

    def link(self, peer: PeerId) -> Link | None:
        """Return the live link to a peer, or None if there is none."""
        link = self._links.get(peer)
        return link if link is not None and link.alive else None

    def all(self) -> list[Link]:
        """Return all live links."""
        return [link for link in self._links.values() if link.alive]

    async def run_alarm(self) -> None:
        """End calls at their deadlines, until cancelled."""
        await self._alarm.run()

    def _expire(self, now: float) -> float:
        """End the calls of all links whose deadline has passed. Return the next deadline."""
        earliest = inf
        for link in list(self._links.values()):
            with self._guard.around(link.peer):
                earliest = min(earliest, link.expire(now))
        return earliest

    async def tick(self) -> None:
        """Run the timer that ticks all links, until cancelled."""
        # Rounding lets the nodes of a simulation tick at the same moments, which costs less CPU.
        self._began = floor(self._host.now() / defaults.HURRY_S) * defaults.HURRY_S
        await self._ticks.run()

    def _tick(self, now: float) -> float:
        """Tick the links that are due, and return the time of the next tick."""
        turns, over = self._turns, []
        while turns and turns[0][0] <= now:
            over.append(heappop(turns))
        for _, _, due, link in over:
            if due == link.due and link.alive:  # otherwise the entry is outdated
                with self._guard.around(link.peer):
                    link.tick(now)
                    self._give_turn(link)
        return self._next_turn()

    def _next_turn(self) -> float:
        """Return the time of the next tick of any link, infinity if none is due.

        Drops the outdated entries before it, so that nothing wakes for them.
        """
        turns = self._turns
        while turns and (turns[0][2] != turns[0][3].due or not turns[0][3].alive):
            heappop(turns)
        return turns[0][0] if turns else inf

    def _give_turn(self, link: Link) -> None:
        """Schedule a link's next tick, unless none is due.

        Times are rounded up to a multiple of a step, so that links share wake-ups.
        """
        if link.due == inf:
            return
        step = defaults.HURRY_S if link.prompt else defaults.TICK_S
        at = self._began + (floor((link.due - self._began) / step) + 1) * step
        heappush(self._turns, (at, next(self._number), link.due, link))

    async def give_back(self) -> None:
        """Return memory to the system when heavy traffic has ended. Runs until cancelled."""
        before = settled = 0
        while True:
            await trio.sleep(defaults.GIVE_BACK_S)
            carried = sum(link.carried for link in self._links.values())
            quiet = abs(carried - before) < defaults.GIVE_BACK_BYTES
            if quiet and abs(carried - settled) >= defaults.GIVE_BACK_BYTES:
                await self._host.give_back_memory()
                settled = carried
            before = carried

    # Which connections become links.

    async def prove_alone(self, peer: PeerId) -> "_Proving":
        """Wait until no other dial to this peer exchanges hellos, and register this dial as doing
        so.

        The caller must call `done` on the returned object.
        """
        while peer in self._proving:
            await self._proving[peer].wait()
        self._proving[peer] = trio.Event()
        return _Proving(self._proving, peer)

    async def judge(self, connected: Connected) -> str | None:
        """Return the code with which to refuse an admitted peer, or None to accept it.

        A further path may arrive before the hello by which the peer has accepted the link, because
        that comes on another connection. It waits for the end of this node's own dial.
        """
        peer, further = connected.peer, connected.hello.resume is not None
        while further and self.link(peer) is None and peer in self._proving:
            await self._proving[peer].wait()
        return self.refusal(connected)

    def refusal(self, connected: Connected) -> str | None:
        """Return the code with which to refuse an admitted peer, or None to accept it.

        If both ends have dialled at the same time, the node with the smaller peer id decides alone:
        it refuses the peer while its own dial exchanges hellos, or while the link that it dialled
        is up. Apart from that, a peer that dials again has lost its earlier link, so the new link
        replaces that one.
        """
        peer, hello = connected.peer, connected.hello
        link = self.link(peer)
        if hello.resume is not None:
            return None if self._further(link, connected) else "unknown-link"
        if peer == self._peer:
            return "self"
        if self._peer < peer and (peer in self._proving or self._dialled_and_up(link, connected)):
            return "duplicate"
        if link is None and len(self._links) >= self._limits.links:
            return None if self._make_room(connected.secured.address[0]) else "full"
        return None

    def _make_room(self, ip: str) -> bool:
        """End the newest link of the fullest network, if the networks of `ip` are less full.

        Returns False if there is no such link. An owner with many peer ids or addresses can
        therefore not keep other peers out. The fullness of a network is its number of links divided
        by its share, which is larger for a larger network (`networks.networks`). Links that this
        node dialled stay. So do relayed ones, because relays limit their number.
        """
        links = self.all()
        if len(links) < self._limits.links:  # a link that has ended is still being removed
            return True
        came = [each for each in links if each.address[0] and not each.identities.dialled]
        counts = Counter(each for link in came for each in networks(link.address[0]))

        def loads(link: Link) -> list[float]:
            held = (counts[each] / each.share for each in networks(link.address[0]))
            return sorted(held, reverse=True)

        # The newest link in the fullest network and, within it, in the fullest smaller one.
        last = max(reversed(came), key=loads, default=None)
        if last is None:
            return False
        theirs, mine = networks(last.address[0]), networks(ip) if ip else ()
        # A network that contains both addresses would stay as full as it is.
        most = max((counts[each] / each.share for each in theirs if each not in mine), default=0)
        ours = (((counts[each] + 1) / each.share) for each in mine if each not in theirs)
        if most <= max(ours, default=1):
            return False
        last.close("full")
        return True

    def _dialled_and_up(self, link: Link | None, connected: Connected) -> bool:
        """Return whether a link is connected, was dialled here, and leads to the same run of the
        peer."""
        return (
            link is not None
            and link.connected
            and link.identities.dialled
            and link.identities.peer_incarnation == connected.hello.incarnation
        )

    def _further(self, link: Link | None, connected: Connected) -> bool:
        """Return whether a connection is a further path of a link. Both incarnations must match."""
        return (
            link is not None
            and connected.hello.resume == self._incarnation
            and connected.hello.incarnation == link.identities.peer_incarnation
        )

    # Life of the links.

    def take_up(self, connected: Connected, path_kind: PathKind, nursery: trio.Nursery) -> None:
        """Turn an accepted connection into a link, or add it as a path to the link that it
        resumes."""
        if connected.hello.resume is not None:
            self.add(connected, path_kind, self.link(connected.peer))
            return
        link = self.register(connected, connected.hello.port)
        nursery.start_soon(self.run, link, connected, path_kind)

    def add(self, connected: Connected, path_kind: PathKind, link: Link | None) -> bool:
        """Add a connection to a link as a path.

        Returns False, and closes the connection, if the link has ended or was replaced.
        """
        if link is None or self.link(connected.peer) is not link:
            connected.secured.close()
            return False
        link.attach(connected.secured, path_kind, connected.early)
        return True

    def register(self, connected: Connected, port: int) -> Link:
        """Create a link, which replaces an older one to the same peer. The caller must `run` it.

        `port` is the peer's TCP port, 0 if unknown.
        """
        old = self._links.get(connected.peer)
        if old is not None:
            same = old.identities.peer_incarnation == connected.hello.incarnation
            old.close("replaced" if same else "peer-restarted")
        link = self._links[connected.peer] = Link(
            self._shared,
            connected.lane(self._limits, self._host.now()),
            connected.identities(self._incarnation, port),
            self,
            brief=connected.dialled and connected.peer in self.briefly,
        )
        return link

    # Used by links (`LinkOwner`).

    async def rescue(self, link: Link) -> str | None:
        return await self._rescue(link)

    def is_held(self, peer: PeerId) -> bool:
        return any(holder(peer) for holder in self.listeners.holders)

    def is_watched(self, peer: PeerId) -> bool:
        return any(watcher(peer) for watcher in self.listeners.watchers)

    def expire_by(self, at: float) -> None:
        self._alarm.set(at)

    def retime(self, link: Link) -> None:
        self._give_turn(link)
        self._ticks.move(self._next_turn())

    def carries_much(self, link: Link) -> None:
        self._tell(self.listeners.much, link)

    def fell_quiet(self, link: Link) -> None:
        self._tell(self.listeners.quiet, link)

    def came_back(self, link: Link) -> None:
        self._tell(self.listeners.back, link)

    def doubted(self, link: Link, doubtful: bool) -> None:
        self._tell(self.listeners.doubt, link, doubtful)

    def found_path(self, link: Link, path_kind: PathKind, medium: str) -> None:
        self._tell(self.listeners.path, link, path_kind, medium)

    def lasting(self, link: Link) -> None:
        self._tell(self.listeners.lasting, link)

    def _tell(self, callbacks: Sequence[Callable[..., None]], link: Link, *told: object) -> None:
        """Call the callbacks of a list with a link and the arguments `told`."""
        self._guard.tell(link.peer, callbacks, link, *told, end=lambda: link.close(MISHAP))

    async def run(
        self,
        link: Link,
        connected: Connected,
        path_kind: PathKind,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a link until it has ended. The task counts as started once calls may be made."""

        def up() -> None:
            task_status.started()
            self.news.unpark_all()
            self._tell(self.listeners.up, link)

        def end() -> None:
            link.close(MISHAP)

        try:
            with self._guard.around(link.peer, end):
                await link.run(connected.secured, path_kind, connected.early, up)
        finally:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
            self.news.unpark_all()
            self._tell(self.listeners.lost, link, link.code or "closed")


class _Proving:
    """Registration of the one dial to a peer that exchanges hellos."""

    def __init__(self, proving: dict[PeerId, trio.Event], peer: PeerId) -> None:
        self._proving = proving
        self._peer = peer

    def done(self) -> None:
        """End the registration, so that the next dial to this peer may begin."""
        self._proving.pop(self._peer).set()
