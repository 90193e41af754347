"""Pulls of member records, which ask one peer at a time for a record that many peers offer.

All other peers wait in line, and a peer that did not deliver goes to the end of it. So a liar that
offers everything delays each record once, and only while it is asked.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from itertools import islice

import trio

from ...transport.errors import TransportError
from ...transport.link.link import Link
from .. import defaults
from .messages import encode_tags
from .roster import Tag

Take = Callable[[Link, bytes | memoryview], Awaitable[None]]


class RecordPulls:
    """Pulls of one node.

    `lacks` returns whether this sequence number of an author is new. `take` stores records, and
    raises BadRecord.
    """

    def __init__(self, lacks: Callable[[Tag, int], bool], take: Take) -> None:
        self._lacks = lacks
        self._take = take
        self._lacking: dict[Link, dict[Tag, int]] = {}  # to ask for: authors and sequence numbers
        self._tellers: dict[Tag, dict[Link, None]] = {}  # by author: the first is asked
        self._moved = trio.Event()  # another peer may be first in line

    def tellers(self, author: Tag) -> Collection[Link]:
        """Return the links over which an author's record is offered and has not arrived."""
        return self._tellers.get(author, {}).keys()

    async def pull(self, link: Link, wanted: Mapping[Tag, int]) -> None:
        """Pull records that this link's peer offers, as soon as it is first in line for them.

        One call serves all offers over a link, including those that arrive meanwhile. Raises
        BadRecord if this link's peer is at fault.
        """
        if not wanted:
            return
        seen_to = link in self._lacking
        lacking = self._lacking.setdefault(link, {})
        room = defaults.MEMBERS - len(lacking)  # an honest peer knows no more
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
                    await trio.sleep(defaults.ROUND)  # waiting links look no more often
        finally:
            del self._lacking[link]
            self._step_out(link, lacking)

    def _line_up(self, link: Link, lacking: dict[Tag, int]) -> bool:
        """Queue behind peers with the same offers, and return whether anything is still lacking."""
        came = [author for author, seq in lacking.items() if not self._lacks(author, seq)]
        for author in came:
            del lacking[author]
        self._step_out(link, came)
        for author in lacking:
            self._tellers.setdefault(author, {}).setdefault(link)
        return bool(lacking)

    def _next_batch(self, link: Link, lacking: Mapping[Tag, int]) -> dict[Tag, int]:
        """Return the next records for which this link is first in line."""
        tellers = self._tellers
        first = (item for item in lacking.items() if next(iter(tellers[item[0]])) is link)
        return dict(islice(first, defaults.BATCH))

    async def _ask(self, link: Link, batch: Mapping[Tag, int], lacking: dict[Tag, int]) -> None:
        """Pull a batch. Other links may serve the rest meanwhile."""
        for author in batch:
            del lacking[author]
        self._step_out(link, lacking)
        try:
            with suppress(TransportError):  # it refused or went away
                asked = encode_tags(batch)
                reply = await link.call("member.pull", payload=asked, timeout=defaults.PULL_TIMEOUT)
                await self._take(link, reply.payload)
        finally:
            self._step_out(link, batch)

    def _step_out(self, link: Link, authors: Collection[Tag]) -> None:
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
