"""Replacement of relayed paths by direct ones: punches for each relayed link until one works."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ... import defaults
from ...bytestream import PathKind
from ...guard import Guard
from ...identity import PeerId
from ...link.link import Link
from .attempt import FUTILE
from .predict import Plan
from .puncher import Puncher


class Improving:
    """Puncher for every relayed link, again and again with longer pauses, until the link is direct
    or over. A birthday search is made only for links that are `needed`: it sends 2,000
    datagrams, as many as a node may send in its whole first minute."""

    def __init__(self, puncher: Puncher, guard: Guard) -> None:
        self._puncher = puncher
        self._guard = guard
        self._under_way: dict[PeerId, tuple[Link, trio.Event]] = {}
        self._spared: set[Link] = set()  # links that a search might make direct
        self._needing: Counter[PeerId] = Counter()  # peers whose link will be needed when it comes

    @contextmanager
    def needing(self, peer: PeerId) -> Iterator[None]:
        """Context in which the link to this peer is needed once it comes."""
        self._needing[peer] += 1
        try:
            yield
        finally:
            self._needing -= Counter((peer,))

    def need(self, link: Link) -> None:
        """Note that a component uses this link, and try methods that were too expensive before."""
        link.need()
        self.look(link)

    def begin(self, link: Link, nursery: trio.Nursery, *, at_once: bool) -> None:
        """Start to improve a link, unless that has begun. The side that dialled begins `at_once`;
        the other waits some seconds."""
        under_way = self._under_way.get(link.peer)
        if under_way is None or under_way[0] is not link:
            self._under_way[link.peer] = link, trio.Event()
            self._guard.start(nursery, link.peer, self._run, link, at_once)

    def look(self, link: Link) -> None:
        """Make the search at once that was skipped, if the link is needed by now."""
        if link in self._spared and link.needed:
            self._under_way[link.peer][1].set()

    def hurry(self) -> None:
        """Try again for all links at once, because the network has changed."""
        for _, event in self._under_way.values():
            event.set()

    async def _run(self, link: Link, at_once: bool) -> None:
        try:
            futile = False
            if at_once:
                futile = await self._punch(link)
            for pause in _pauses():
                if not await self._wait(link, max(pause, defaults.FUTILE_S) if futile else pause):
                    return
                futile = await self._punch(link)
        finally:
            self._spared.discard(link)
            if self._is_mine(link):
                del self._under_way[link.peer]

    async def _punch(self, link: Link) -> bool:
        """Return whether only a search or another network can help."""
        needed = link.needed or self._needing[link.peer] > 0
        outcome = await self._puncher.punch(link, thrifty=not needed)
        prediction = outcome.strategies.get("prediction")
        reason = prediction.reason if prediction is not None else ""
        if reason == Plan.SPARED:
            self._spared.add(link)
            self.look(link)  # it may have become needed in the meantime
        else:
            self._spared.discard(link)
        return reason in FUTILE

    async def _wait(self, link: Link, pause: float) -> bool:
        """Wait for the pause or a network change. Return whether the link is still relayed."""
        with trio.move_on_after(pause):
            await self._under_way[link.peer][1].wait()
        if not self._is_mine(link) or not link.alive or link.path_kind is not PathKind.RELAYED:
            return False
        self._under_way[link.peer] = link, trio.Event()
        return True

    def _is_mine(self, link: Link) -> bool:
        """Whether this link is the current one; a newer link to the peer has a task of its own."""
        under_way = self._under_way.get(link.peer)
        return under_way is not None and under_way[0] is link


def _pauses() -> Iterator[float]:
    yield from defaults.PUNCH_PAUSES_S
    while True:
        yield defaults.PUNCH_PAUSES_S[-1]
