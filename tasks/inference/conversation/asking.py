"""Asks nodes to load a model that no chain serves. A node unloads idle shards of others for it.

Spec: docs/spec/session.md, `shard.ask`.
"""

from collections.abc import Collection
from typing import Annotated, Final, Literal

from msgspec import Meta

from ....state.directory import Directory
from ....transport.errors import CallRefused, LinkClosed
from ....transport.identity import PeerId
from ....transport.message import Root
from ...defaults import ASK_AGAIN, NODES_ASKED
from ...errors import BadMessage
from ...message import HeaderMessage
from ..courier import Courier
from ..generation import Model
from ..line import overloaded
from ..routing import Members, holes_of

AskCode = Literal["loading", "full", "no-fit", "unasked"]


class AskShard(HeaderMessage, frozen=True):
    """`shard.ask`: a gateway's request to load a model."""

    root: Root


class ShardAsked(HeaderMessage, frozen=True):
    """Reply to `shard.ask`: whether the model is being loaded, and if not, why.

    `back` is the number of seconds after which a node that is `full` may have room.
    """

    code: AskCode
    back: Annotated[float, Meta(ge=0.0, le=3600.0)] = 0.0


_COMES: Final = "loading"


class Asking:
    """Requests of one gateway to load models."""

    def __init__(self, courier: Courier, directory: Directory) -> None:
        self._courier = courier
        self._directory = directory

    async def comes(self, model: Model) -> bool:
        """Return whether a node loads a model of which members serve not all layers.

        Asks one node after the other: this one first, and then those that offer most memory. Raises
        Overloaded if one has no room for the model yet, and no other loads it.
        """
        members, backs = self._directory.members(), list[float]()
        if not holes_of(members, model.root, model.layers):
            return False
        for peer in self._nodes(members):
            said = await self._ask(peer, model.root)
            if said is not None and said.code == _COMES:
                return True
            if said is not None and said.code == "full":
                backs.append(said.back)
        if backs:
            raise overloaded(min(backs), "other models take their memory")
        return False

    def _nodes(self, members: Members) -> Collection[PeerId]:
        """Return the nodes to ask, in order."""
        able = [
            record
            for record in members.values()
            if record.capacity.engine and self._courier.reaches(record.peer)
        ]
        own = self._courier.peer
        able.sort(key=lambda each: (each.peer != own, -each.capacity.memory_bytes, each.peer))
        return [each.peer for each in able[:NODES_ASKED]]

    async def _ask(self, peer: PeerId, root: str) -> ShardAsked | None:
        """Return what a node says, or None if it says nothing useful."""
        question = AskShard(root).header()
        try:
            reply = await self._courier.call(peer, "shard.ask", question, timeout=ASK_AGAIN)
            return ShardAsked.parse(reply.header)
        except (BadMessage, CallRefused, LinkClosed):
            return None
