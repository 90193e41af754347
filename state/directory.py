"""Who is in the swarm, as everything above asks it; `listing.py` answers."""

from collections.abc import Mapping
from typing import Any, Protocol

from ..transport.identity import PeerId
from .record import MemberRecord


class Directory(Protocol):
    """The live members, and a way to say something of this one."""

    @property
    def version(self) -> int:
        """Grows whenever `members` would answer otherwise."""
        ...

    def members(self) -> Mapping[PeerId, MemberRecord]:
        """Those that answer, with a link or without, this node included; of their shards those
        that they serve in this run."""
        ...

    def own(self) -> MemberRecord:
        """This node, as it says itself."""
        ...

    def publish(self, **changes: Any) -> None:
        """Say something else of this node, in its record or its feeds; lists are cut to their
        bounds. Raises BadRecord where others would not take it: nothing changes then."""
        ...

    async def changed(self, version: int) -> int:
        """Wait until `version` is beyond this one; the new one."""
        ...
