"""Reports the round trips to the members with which this node shares models, for placement."""

from collections.abc import Callable
from typing import NoReturn

import trio

from ...state.directory import Directory
from ...state.membership.record import MemberRecord
from ...transport.identity import PeerId
from ..defaults import LINKS_PAUSE
from ..placement.demand import Backing
from ..placement.links import report


class LinkReports:
    """Service that publishes this node's links while it holds a part of a model.

    A node that serves whole models, or none, reports nothing: no chain runs through its links.
    """

    def __init__(self, directory: Directory, backing: Callable[[], Backing]) -> None:
        self._directory = directory
        self._backing = backing

    async def run(self) -> NoReturn:
        """Report until cancelled."""
        while True:
            await trio.sleep(LINKS_PAUSE)
            own = self._directory.own()
            links = report(self._backing().links, self._counted(own), own.links)
            if links != own.links:
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


def _roots(record: MemberRecord) -> set[str]:
    return {shard.root for shard in record.shards} | {aim.root for aim in record.aims}
