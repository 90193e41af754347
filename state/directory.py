"""Interface to the swarm's members for the layers above; `listing.py` implements it."""

from collections.abc import Mapping
from typing import Any, Protocol

from ..transport.identity import PeerId
from .membership.record import MemberRecord


class Directory(Protocol):
    """The live members, and a way to publish facts about this node."""

    @property
    def version(self) -> int:
        """A number that grows whenever the result of `members` changes."""
        ...

    def members(self) -> Mapping[PeerId, MemberRecord]:
        """Return the live members, with or without a link, including this node.

        Their shards are only those that they serve in their current run.
        """
        ...

    def own(self) -> MemberRecord:
        """Return this node's own record."""
        ...

    def publish(self, **changes: Any) -> None:
        """Publish changes to this node's record or feeds. Lists are cut to their limits.

        Raises BadRecord if other nodes would refuse a value. Then nothing is published.
        """
        ...

    async def own_changed(self) -> None:
        """Wait until this node publishes something else about itself."""
        ...

    async def changed(self, version: int) -> int:
        """Wait until the version is greater than `version`, and return it."""
        ...
