"""Replacement of relayed paths by direct ones. Punches for each relayed link until one attempt
works."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ... import defaults
from ...bytestream import PathKind
from ...identity import PeerId
from ...link.link import Link
from ...peertasks import PeerTasks
from .attempt import FUTILE
from .predict import PredictionPlan
from .puncher import Puncher


class Improving:
    """Hole punching for all relayed links, repeated with longer pauses until a link is direct or
    closed.

    A birthday search sends 2,000 datagrams, as many as a node may send in its whole first minute.
    Only a link that is `needed` therefore gets one.
    """

    def __init__(self, puncher: Puncher, tasks: PeerTasks) -> None:
        self._puncher = puncher
        self._tasks = tasks
        self._under_way: dict[PeerId, tuple[Link, trio.Event]] = {}
        self._spared: set[Link] = set()  # links whose birthday search was skipped
        self._needing: Counter[PeerId] = Counter()  # peers whose next link counts as needed

    @contextmanager
    def needing(self, peer: PeerId) -> Iterator[None]:
        """Mark the link to a peer as needed while the context is open, even if there is no link
        yet."""
        self._needing[peer] += 1
        try:
            yield
        finally:
            self._needing -= Counter((peer,))

    def need(self, link: Link) -> None:
        """Mark a link as needed, and make its birthday search now if that was skipped before."""
        link.need()
        self.look(link)

    def begin(self, link: Link, *, at_once: bool) -> None:
        """Start to improve a link, unless this has begun already, or the node does not run.

        The first attempt begins at once if `at_once`, as on the side that dialled; otherwise after
        some seconds.
        """
        under_way = self._under_way.get(link.peer)
        if self._tasks.running and (under_way is None or under_way[0] is not link):
            self._under_way[link.peer] = link, trio.Event()
            self._tasks.start(link.peer, self._run, link, at_once)

    def look(self, link: Link) -> None:
        """Make the birthday search of a link at once, if it was skipped and the link is now
        needed."""
        if link in self._spared and link.needed:
            self._under_way[link.peer][1].set()

    def hurry(self) -> None:
        """Start the next attempt for every link at once. Call this when the network has changed."""
        for _, event in self._under_way.values():
            event.set()

    async def _run(self, link: Link, at_once: bool) -> None:
        """Punch for a link, again after each pause, until the link is direct or closed."""
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
        """Make one attempt. Return whether further attempts would fail as well, unless they make a
        birthday search or the network changes."""
        needed = link.needed or self._needing[link.peer] > 0
        outcome = await self._puncher.punch(link, thrifty=not needed)
        prediction = outcome.strategies.get("prediction")
        reason = prediction.reason if prediction is not None else ""
        if reason == PredictionPlan.SPARED:
            self._spared.add(link)
            self.look(link)  # the link may have become needed in the meantime
        else:
            self._spared.discard(link)
        return reason in FUTILE

    async def _wait(self, link: Link, pause: float) -> bool:
        """Wait for the pause to end or for `hurry`. Return whether the link still needs an attempt.

        That is so if the link is alive and relayed, and no newer link to the peer has replaced it.
        """
        with trio.move_on_after(pause):
            await self._under_way[link.peer][1].wait()
        if not self._is_mine(link) or not link.alive or link.path_kind is not PathKind.RELAYED:
            return False
        self._under_way[link.peer] = link, trio.Event()
        return True

    def _is_mine(self, link: Link) -> bool:
        """Return whether this link is the current one of its peer. A newer link has a task of its
        own."""
        under_way = self._under_way.get(link.peer)
        return under_way is not None and under_way[0] is link


def _pauses() -> Iterator[float]:
    """Yield the pauses between attempts, in seconds. The last pause repeats without end."""
    yield from defaults.PUNCH_PAUSES_S
    while True:
        yield defaults.PUNCH_PAUSES_S[-1]
