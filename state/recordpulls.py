"""Whom to ask for member records: each of one peer at a time, however many offer it.

Who offers what another is asked for waits in line, and who did not deliver stands behind the
others: a liar that offers everything holds up each record once, and only while it is asked.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from itertools import islice

import msgpack
import trio

from ..transport.errors import TransportError
from ..transport.identity import PeerId
from ..transport.link import Link
from . import defaults

Take = Callable[[Link, bytes | memoryview], Awaitable[None]]


class RecordPulls:
    """Of one node. `lacks`: whether that number of an author is news; `take` takes records in, and
    raises BadRecord."""

    def __init__(self, lacks: Callable[[PeerId, int], bool], take: Take) -> None:
        self._lacks = lacks
        self._take = take
        self._lacking: dict[Link, dict[PeerId, int]] = {}  # to ask for: authors and numbers
        self._tellers: dict[PeerId, dict[Link, None]] = {}  # by author: the first is asked
        self._moved = trio.Event()  # somebody else may be the first

    def tellers(self, author: PeerId) -> Collection[Link]:
        """Return the links over which an author's record is offered and has not arrived."""
        return self._tellers.get(author, {}).keys()

    async def pull(self, link: Link, wanted: Mapping[PeerId, int]) -> None:
        """Ask for records that this link's peer offers, each of one peer at a time: who offers it
        as well waits in line. One call sees to all that is offered over a link, also meanwhile.
        Raises BadRecord, the fault of this link's peer."""
        if not wanted:
            return
        seen_to = link in self._lacking
        lacking = self._lacking.setdefault(link, {})
        room = defaults.MEMBERS - len(lacking)  # nobody honest knows more
        lacking.update(islice(wanted.items(), room))
        if seen_to:
            self._move()
            return
        try:
            while self._line_up(link, lacking):
                if batch := self._next_batch(link, lacking):
                    await self._ask(link, batch, lacking)
                else:
                    await self._moved.wait()
                    await trio.sleep(defaults.ROUND)  # who waits looks no oftener
        finally:
            del self._lacking[link]
            self._step_out(link, lacking)

    def _line_up(self, link: Link, lacking: dict[PeerId, int]) -> bool:
        """Behind those who offer the same; whether there is anything that has not come yet."""
        came = [author for author, seq in lacking.items() if not self._lacks(author, seq)]
        for author in came:
            del lacking[author]
        self._step_out(link, came)
        for author in lacking:
            self._tellers.setdefault(author, {}).setdefault(link)
        return bool(lacking)

    def _next_batch(self, link: Link, lacking: Mapping[PeerId, int]) -> dict[PeerId, int]:
        """What this one is the first to offer."""
        tellers = self._tellers
        first = (item for item in lacking.items() if next(iter(tellers[item[0]])) is link)
        return dict(islice(first, defaults.BATCH))

    async def _ask(
        self, link: Link, batch: Mapping[PeerId, int], lacking: dict[PeerId, int]
    ) -> None:
        """Meanwhile it holds up nothing else, and afterwards it is behind the others."""
        for author in batch:
            del lacking[author]
        self._step_out(link, lacking)
        try:
            with suppress(TransportError):  # it refused or went away
                names = msgpack.packb(list(batch))
                reply = await link.call("member.pull", payload=names, timeout=defaults.PULL_TIMEOUT)
                await self._take(link, reply.payload)
        finally:
            self._step_out(link, batch)

    def _step_out(self, link: Link, authors: Collection[PeerId]) -> None:
        for author in authors:
            line = self._tellers.get(author, {})
            line.pop(link, None)
            if not line:
                self._tellers.pop(author, None)
        if authors:
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
