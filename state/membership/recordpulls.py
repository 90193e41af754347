"""Pulls of member records, which ask one peer at a time for a record that many peers offer.

All other peers that offer the record wait in line, and a peer that did not deliver it goes to the
end of the line. Therefore a liar that offers everything delays each record only once, and only
while the liar is asked.
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
    """The pulls of one node.

    `lacks` returns whether a record of this author with this sequence number is news. `take` stores
    records; it raises BadRecord if the sender is at fault.
    """

    def __init__(self, lacks: Callable[[Tag, int], bool], take: Take) -> None:
        self._lacks = lacks
        self._take = take
        # records to ask for: author and sequence number
        self.lacking: dict[Link, dict[Tag, int]] = {}
        self.all_tellers: dict[Tag, dict[Link, None]] = {}
        """Links in line by author. The first is asked."""
        self._moved = trio.Event()  # another peer may be first in line

    def tellers(self, author: Tag) -> Collection[Link]:
        """Return the links whose peers offer an author's record that has not arrived."""
        return self.all_tellers.get(author, {}).keys()

    async def pull(self, link: Link, wanted: Mapping[Tag, int]) -> None:
        """Pull records that this link's peer offers, as soon as the link is first in line for them.

        `wanted` has the sequence number of each author's record. If a call for this link is running
        already, that call pulls these records too, and this one returns at once. Raises BadRecord
        if the link's peer is at fault.
        """
        if not wanted:
            return
        seen_to = link in self.lacking
        lacking = self.lacking.setdefault(link, {})
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
                    # a waiting link checks no more often than this
                    await trio.sleep(defaults.ROUND)
        finally:
            del self.lacking[link]
            self._step_out(link, lacking)

    def _line_up(self, link: Link, lacking: dict[Tag, int]) -> bool:
        """Put a link in line for each record that is still lacking.

        Return whether there are any.
        """
        came = [author for author, seq in lacking.items() if not self._lacks(author, seq)]
        for author in came:
            del lacking[author]
        self._step_out(link, came)
        for author in lacking:
            self.all_tellers.setdefault(author, {}).setdefault(link)
        return bool(lacking)

    def _next_batch(self, link: Link, lacking: Mapping[Tag, int]) -> dict[Tag, int]:
        """Return the next records for which this link is first in line."""
        tellers = self.all_tellers
        first = (item for item in lacking.items() if next(iter(tellers[item[0]])) is link)
        return dict(islice(first, defaults.BATCH))

    async def _ask(self, link: Link, batch: Mapping[Tag, int], lacking: dict[Tag, int]) -> None:
        """Pull a batch of records over a link.

        Other links may pull the remaining ones at the same time.
        """
        for author in batch:
            del lacking[author]
        self._step_out(link, lacking)
        try:
            with suppress(TransportError):  # the peer refused or went away
                asked = encode_tags(batch)
                reply = await link.call("member.pull", payload=asked, timeout=defaults.PULL_TIMEOUT)
                await self._take(link, reply.payload)
        finally:
            self._step_out(link, batch)

    def _step_out(self, link: Link, authors: Collection[Tag]) -> None:
        for author in authors:
            line = self.all_tellers.get(author, {})
            line.pop(link, None)
            if not line:
                self.all_tellers.pop(author, None)
        if authors:
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
