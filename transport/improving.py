"""From a relayed path to a direct one: who punches, and when again."""

from collections.abc import Awaitable, Callable, Iterator

import trio

from . import defaults
from .guard import Guard
from .identity import PeerId
from .link import Link
from .pipe import Way
from .punch.puncher import Puncher


class Improving:
    """Punches for every link that is carried by a relay, again and again with longer pauses, until
    it is direct or over. `look(peer)` finds out where others see a peer, which both ends must
    know before."""

    def __init__(
        self, puncher: Puncher, look: Callable[[PeerId], Awaitable[None]], guard: Guard
    ) -> None:
        self._puncher = puncher
        self._look = look
        self._guard = guard
        self._under_way: dict[PeerId, tuple[Link, trio.Event]] = {}

    def begin(self, link: Link, nursery: trio.Nursery, *, at_once: bool) -> None:
        """See to a link, unless that is done already. The side that dialled is `at_once`; the
        other leaves it some seconds."""
        under_way = self._under_way.get(link.peer)
        if under_way is None or under_way[0] is not link:
            self._under_way[link.peer] = link, trio.Event()
            self._guard.start(nursery, link.peer, self._run, link, at_once)

    def hurry(self) -> None:
        """The network is another one: what was given up on is tried again now."""
        for _, event in self._under_way.values():
            event.set()

    async def _run(self, link: Link, at_once: bool) -> None:
        try:
            await self._look(link.peer)
            if at_once:
                await self._puncher.punch(link)
            for pause in _pauses():
                if not await self._wait(link, pause):
                    return
                await self._look(link.peer)
                await self._puncher.punch(link)
        finally:
            if self._is_mine(link):
                del self._under_way[link.peer]

    async def _wait(self, link: Link, pause: float) -> bool:
        """Whether, after a pause or a change of the network, there is still something to do."""
        with trio.move_on_after(pause):
            await self._under_way[link.peer][1].wait()
        if not self._is_mine(link) or not link.alive or link.way is not Way.RELAYED:
            return False
        self._under_way[link.peer] = link, trio.Event()
        return True

    def _is_mine(self, link: Link) -> bool:
        """A newer link to the same peer has a task of its own."""
        under_way = self._under_way.get(link.peer)
        return under_way is not None and under_way[0] is link


def _pauses() -> Iterator[float]:
    yield from defaults.PUNCH_PAUSES_S
    while True:
        yield defaults.PUNCH_PAUSES_S[-1]
