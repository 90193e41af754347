"""Who is in the swarm, as everything above asks it; DHT and CRDT state fill it later."""

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
        """Those that answer, with a link or without, this node included."""
        ...

    def own(self) -> MemberRecord:
        """This node's own record."""
        ...

    def publish(self, **changes: Any) -> None:
        """Replace fields of the own record, sign it, spread it. Raises BadRecord."""
        ...

    async def changed(self, version: int) -> int:
        """Wait until `version` is beyond this one; the new one."""
        ...
