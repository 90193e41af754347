"""Asks nodes to load a model that no chain serves. A node unloads idle shards of others for it.

Spec: docs/spec/session.md, `shard.ask`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Literal

import trio
from msgspec import Meta

from ....state.directory import Directory
from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.message import Root
from ...defaults import ASK_AGAIN, NODES_ASKED, PROMISE_BROKEN, PROMISES
from ...engine.families import weight_bytes
from ...engine.interface import Parts
from ...errors import BadMessage
from ...message import HeaderMessage
from ...placement.holes import holes_of
from ..courier import Courier
from ..generation import Model
from ..line import overloaded
from ..shards import Members

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


@dataclass(slots=True)
class _Question:
    """What nodes said of one model."""

    promised: dict[PeerId, bool] = field(default_factory=dict)
    """Nodes that may load the model, with whether they said so, or were asked too often for it."""
    backs: list[float] = field(default_factory=list)
    complete: bool = False
    done: trio.Event = field(default_factory=trio.Event)


class Asking:
    """Requests of one gateway to load models. Requests of clients for one model share them."""

    def __init__(self, host: Host, courier: Courier, directory: Directory) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory
        self._open: dict[str, _Question] = {}
        self._coming: dict[str, float] = {}  # when a node said that it loads a model, by root
        # By root: the nodes that may load it, and whether they said so.
        self._promised: dict[str, dict[PeerId, bool]] = {}
        self._broken: dict[PeerId, float] = {}  # when nodes have not loaded what they promised

    async def comes(self, model: Model) -> bool:
        """Return whether a node loads a model of which members serve not all layers.

        Asks one node after the other: this one first, then those that have promised it, and then
        others that offer enough memory. Raises Overloaded if one has no room for the model yet, and
        no other loads it.
        """
        if not holes_of(self._directory.members(), model.root, model.layers):
            return False
        now = self._host.now()
        self._coming = {root: at for root, at in self._coming.items() if now < at + ASK_AGAIN / 2}
        if model.root in self._coming:
            return True
        said = await self._shared(model)
        if said.backs and not said.promised:
            raise overloaded(min(said.backs), "other models take their memory")
        return bool(said.promised)

    def waited(self, root: str) -> None:
        """Record that a request has waited for a model as long as it may, and that it has not come.

        The nodes that have promised it are asked last for some time, for any model. One that was
        only asked too often has promised nothing: strangers can have any node say that.
        """
        now = self._host.now()
        self._coming.pop(root, None)
        for peer, said in self._promised.pop(root, {}).items():
            if said:
                self._broken[peer] = now

    async def _shared(self, model: Model) -> _Question:
        """Return what the nodes say. Waits for a question that another request has asked."""
        root = model.root
        while (question := self._open.get(root)) is not None:
            await question.done.wait()
            if question.complete:  # otherwise the request that asked it was cancelled
                return question
        question = self._open[root] = _Question()
        try:
            for peer in self._nodes(model, self._directory.members()):
                if await self._ask(peer, root, question):
                    self._coming[root] = self._host.now()
                    break
            question.complete = True
            self._remember(root, question.promised)
        finally:
            del self._open[root]
            question.done.set()
        return question

    def _remember(self, root: str, promised: dict[PeerId, bool]) -> None:
        """Remember the nodes that may load a model, and which of them have ever said so."""
        before = self._promised.pop(root, {})
        self._promised[root] = {
            peer: said or before.get(peer, False) for peer, said in promised.items()
        }
        while len(self._promised) > PROMISES:
            del self._promised[next(iter(self._promised))]

    def _nodes(self, model: Model, members: Members) -> Collection[PeerId]:
        """Return the nodes to ask, in order.

        Nodes that offer enough memory come in random order, because a liar can claim any amount.
        """
        now, own, need = self._host.now(), self._courier.peer, _least_bytes(model)
        self._broken = {peer: at for peer, at in self._broken.items() if now < at + PROMISE_BROKEN}
        promised = self._promised.get(model.root, {})
        able = [
            record
            for record in members.values()
            if record.capacity.engine and self._courier.reaches(record.peer)
        ]
        salt = self._host.entropy(16)
        able.sort(
            key=lambda each: (
                each.peer != own,
                each.peer in self._broken,
                each.peer not in promised,
                each.capacity.memory_bytes < need,
                sha256(salt + each.peer.encode()).digest(),
            )
        )
        return [each.peer for each in able[:NODES_ASKED]]

    async def _ask(self, peer: PeerId, root: str, question: _Question) -> bool:
        """Note what a node says. Return whether it loads the model."""
        header = AskShard(root).header()
        try:
            reply = await self._courier.call(peer, "shard.ask", header, timeout=ASK_AGAIN)
            said = ShardAsked.parse(reply.header)
        except CallRefused as error:
            if error.code == "busy":  # strangers ask it; it may load the model all the same
                question.promised[peer] = False
            return False
        except (BadMessage, LinkClosed):
            return False
        if said.code == "full":
            question.backs.append(said.back)
        elif said.code == "loading":
            question.promised[peer] = True
        return said.code == "loading"


def _least_bytes(model: Model) -> int:
    """Return the least memory in bytes that the whole model takes, 0 if that is not known."""
    if model.arch is None:
        return 0
    return weight_bytes(model.arch, Parts(True, 0, model.layers, True), "bfloat16")
