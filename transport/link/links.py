"""Registry of a node's links: at most one to each peer, and callbacks for changes of their
state."""

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
from .alarm import Alarm
from .link import Link
from .shared import Shared

Told = Callable[[Link], None]


@dataclass(slots=True)
class Listeners:
    """Callbacks of a node's components about its links. `Endpoint.on_link` and its neighbours say
    what each is called for."""

    up: list[Told] = field(default_factory=list)
    lost: list[Callable[[Link, str], None]] = field(default_factory=list)
    path: list[Callable[[Link, PathKind, str], None]] = field(default_factory=list)
    quiet: list[Told] = field(default_factory=list)
    back: list[Told] = field(default_factory=list)
    doubt: list[Callable[[Link, bool], None]] = field(default_factory=list)
    kept: list[Told] = field(default_factory=list)
    holders: list[Callable[[PeerId], bool]] = field(default_factory=list)
    watchers: list[Callable[[PeerId], bool]] = field(default_factory=list)


class Links:
    """All links of a node. It decides which connections may become one, and runs each in a task."""

    def __init__(
        self,
        peer: PeerId,
        incarnation: bytes,
        shared: Shared,
        rescue: Callable[[Link], Awaitable[str | None]],
    ) -> None:
        """`rescue` is that of `LinkOwner` for all links."""
        self.handlers = shared.handlers
        self.listeners = Listeners()
        self.briefly: Counter[PeerId] = Counter()  # peers being dialled for a few questions only
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
        # A heap. The third item of each entry is `Link.due`.
        self._turns: list[tuple[float, int, float, Link]] = []
        self._number = count()
        self._began = 0.0
        self._links: dict[PeerId, Link] = {}
        self._proving: dict[PeerId, trio.Event] = {}  # dials that TLS has authenticated

    def link(self, peer: PeerId) -> Link | None:
        """Return the live link to a peer, or None."""
        link = self._links.get(peer)
        return link if link is not None and link.alive else None

    def all(self) -> list[Link]:
        """Return all live links."""
        return [link for link in self._links.values() if link.alive]

    async def run_alarm(self) -> None:
        """Enforce the deadlines of calls until cancelled."""
        await self._alarm.run()

    def _expire(self, now: float) -> float:
        earliest = inf
        for link in list(self._links.values()):
            with self._guard.around(link.peer):
                earliest = min(earliest, link.expire(now))
        return earliest

    async def tick(self) -> None:
        """Run the one timer of all links until cancelled."""
        # Nodes of a simulation need not tick at the same moments, but those that do cost less.
        self._began = floor(self._host.now() / defaults.HURRY_S) * defaults.HURRY_S
        await self._ticks.run()

    def _tick(self, now: float) -> float:
        turns, over = self._turns, []
        while turns and turns[0][0] <= now:
            over.append(heappop(turns))
        for _, _, due, link in over:
            if due == link.due and link.alive:  # otherwise it has a later turn, or needs none
                with self._guard.around(link.peer):
                    link.tick(now)
                    self._give_turn(link)
        return turns[0][0] if turns else inf

    def _give_turn(self, link: Link) -> float:
        """Schedule a link at the first step after it is due, so that links share wake-ups."""
        if link.due == inf:
            return inf
        step = defaults.HURRY_S if link.prompt else defaults.TICK_S
        at = self._began + (floor((link.due - self._began) / step) + 1) * step
        heappush(self._turns, (at, next(self._number), link.due, link))
        return at

    async def give_back(self) -> None:
        """Return memory to the system after heavy traffic has ended. Run until cancelled."""
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
        """Wait until no other dial is about to become the link to this peer."""
        while peer in self._proving:
            await self._proving[peer].wait()
        self._proving[peer] = trio.Event()
        return _Proving(self._proving, peer)

    def refusal(self, connected: Connected) -> str | None:
        """Return the code that refuses an admitted peer, or None if its link may come up.

        Both ends may have dialled at once. The node with the smaller peer id decides alone: it
        refuses while its own dial is proving the peer, or while the link it dialled is up. A peer
        that dials again has lost its earlier link, so the new link replaces it.
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
        """End the newest link of the fullest network, if the newcomer's networks are less full.

        So one owner with many peer ids or addresses does not keep others out. Fullness is the
        number of links divided by the network's multiple (`networks.networks`). Links that this
        node dialled stay, and so do relayed ones, because relays limit those.
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
        # A network that contains both stays as full as it is.
        most = max((counts[each] / each.share for each in theirs if each not in mine), default=0)
        ours = (((counts[each] + 1) / each.share) for each in mine if each not in theirs)
        if most <= max(ours, default=1):
            return False
        last.close("full")
        return True

    def _dialled_and_up(self, link: Link | None, connected: Connected) -> bool:
        return (
            link is not None
            and link.connected
            and link.identities.dialled
            and link.identities.peer_incarnation == connected.hello.incarnation
        )

    def _further(self, link: Link | None, connected: Connected) -> bool:
        return (
            link is not None
            and connected.hello.resume == self._incarnation
            and connected.hello.incarnation == link.identities.peer_incarnation
        )

    # Life of the links.

    def take_up(self, connected: Connected, path_kind: PathKind, nursery: trio.Nursery) -> None:
        """Turn an accepted connection into a link, or add it to the link that it resumes."""
        if connected.hello.resume is not None:
            self.add(connected, path_kind, self.link(connected.peer))
            return
        link = self.register(connected, connected.hello.port)
        nursery.start_soon(self.run, link, connected, path_kind)

    def add(self, connected: Connected, path_kind: PathKind, link: Link | None) -> bool:
        """Add a connection to a link. Return False if the link has ended or was replaced."""
        if link is None or self.link(connected.peer) is not link:
            connected.secured.close()
            return False
        link.attach(connected.secured, path_kind, connected.early)
        return True

    def register(self, connected: Connected, port: int) -> Link:
        """Return a new link, which replaces an older one. The caller must `run` it."""
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

    def tick_soon(self, link: Link) -> None:
        self._ticks.set(self._give_turn(link))

    def fell_quiet(self, link: Link) -> None:
        self._tell(self.listeners.quiet, link)

    def came_back(self, link: Link) -> None:
        self._tell(self.listeners.back, link)

    def doubted(self, link: Link, doubtful: bool) -> None:
        self._tell(self.listeners.doubt, link, doubtful)

    def found_path(self, link: Link, path_kind: PathKind, medium: str) -> None:
        self._tell(self.listeners.path, link, path_kind, medium)

    def kept(self, link: Link) -> None:
        self._tell(self.listeners.kept, link)

    def _tell(self, callbacks: Sequence[Callable[..., None]], link: Link, *told: object) -> None:
        self._guard.tell(link.peer, callbacks, link, *told, end=lambda: link.close(MISHAP))

    async def run(
        self,
        link: Link,
        connected: Connected,
        path_kind: PathKind,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a link until it has ended. Started when calls may be made."""

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
    """A dial that has authenticated its peer and exchanges hellos; `done` lets the next one
    begin."""

    def __init__(self, proving: dict[PeerId, trio.Event], peer: PeerId) -> None:
        self._proving = proving
        self._peer = peer

    def done(self) -> None:
        self._proving.pop(self._peer).set()
