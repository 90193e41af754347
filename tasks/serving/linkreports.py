"""Reports the round trips to the members with which this node shares models, for placement."""

from collections.abc import Callable, Collection
from typing import NoReturn

import trio

from ...state.directory import Directory
from ...state.membership.record import MemberRecord, ShardRecord
from ...transport.identity import PeerId
from ...transport.rates import Rate, Rates
from ..defaults import LINKS_LOOK, LINKS_REPORTS
from ..placement.demand import Backing
from ..placement.links import report


class LinkReports:
    """Service that publishes this node's links while it holds a part of a model.

    A node that serves whole models, or none, reports nothing: no chain runs through its links. A
    new link often begins over a relay and is direct a few seconds later, so a few reports may
    follow each other soon.
    """

    def __init__(
        self,
        directory: Directory,
        backing: Callable[[], Backing],
        expect: Callable[[Collection[PeerId]], None],
    ) -> None:
        """Create the service. `expect` prepares the links to members with adjacent layers."""
        self._directory = directory
        self._expect = expect
        self._backing = backing
        self._rates = Rates(Rate(*LINKS_REPORTS))

    async def run(self) -> NoReturn:
        """Report until cancelled."""
        while True:
            await trio.sleep(LINKS_LOOK)
            own = self._directory.own()
            counted = self._counted(own)
            if not counted and not own.links:
                continue
            self._expect(self.adjacent(own))
            links = report(self._backing().links, counted, own.links)
            if links != own.links and self._rates.take(own.peer, trio.current_time()):
                self._directory.publish(links=links)

    def _counted(self, own: MemberRecord) -> set[PeerId]:
        """Return the members that serve, seek or claim layers of the models of which this node
        serves a part."""
        parts = {shard.root for shard in own.shards if not (shard.embedding and shard.head)}
        return {
            record.peer
            for record in (self._directory.members().values() if parts else ())
            if record.peer != own.peer and parts & _roots(record)
        }

    def adjacent(self, own: MemberRecord) -> list[PeerId]:
        """Return the members that serve the layers before or after those of this node. After the
        last layer comes the first one."""
        return [
            record.peer
            for record in self._directory.members().values()
            if record.peer != own.peer
            and any(_joins(mine, other) for mine in own.shards for other in record.shards)
        ]


def _joins(one: ShardRecord, other: ShardRecord) -> bool:
    same = (one.root, one.dtype) == (other.root, other.dtype)
    ring = (one.head and other.embedding) or (one.embedding and other.head)
    return same and (one.stop == other.start or other.stop == one.start or ring)


def _roots(record: MemberRecord) -> set[str]:
    return {shard.root for shard in record.shards} | {aim.root for aim in record.aims}
