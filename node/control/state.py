"""Control socket operations on the swarm's state. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...state.feeds.entry import FeedName
from ...state.feeds.kinds import KINDS
from ...state.inspection import FeedView
from ...state.replication.interest import Keeps
from ...transport.identity import PeerId
from ...transport.shortid import meant
from ..errors import ControlError
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node

_KINDS = ", ".join(KINDS)


class StateOperations:
    """Operations on the state of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {
            "state_show": self.show,
            "state_log": self.log,
            "state_verify": self.verify,
            "state_export": self.export,
        }

    async def show(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Emit the feeds, one in each event, with their facts if an author is given."""
        count = 0
        facts = request.get("author") is not None
        for view in await self._chosen(request):
            await emit(await self._event(view, facts=facts))
            count += 1
        views, exchange = self._node.state.views, self._node.state.replication.exchange
        return {
            "feeds": count,
            "own": self._node.identity.peer,
            "members": len(views.members),
            "unreadable": views.bad,
            "keeps": _kept(self._node.state.interest.kept),
            "alone": _kept(frozenset(exchange.uncovered() if exchange.peers else ())),
        }

    async def export(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Emit all feeds with their facts, one in each event."""
        count = 0
        for view in await self._chosen(request):
            await emit(await self._event(view, facts=True))
            count += 1
        return {"feeds": count}

    async def log(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Emit each change of the chosen facts in an event, feed by feed."""
        key, count = _text(request, "key"), 0
        for view in await self._chosen(request):
            async for said in self._node.state.inspection.history(view):
                for changed, value in said.changes.items():
                    if key is None or changed == key:
                        count += 1
                        await emit(
                            {
                                "event": "said",
                                **_name(view.name),
                                "epoch": said.entry.epoch,
                                "seq": said.entry.seq,
                                "made": said.entry.made / 1000,
                                "earlier": said.entry.seq == 0,
                                "key": changed,
                                "value": value,
                            }
                        )
        return {"changes": count}

    async def verify(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Verify every signature and chain in the store."""
        found = await self._node.state.inspection.verified()
        return {
            "feeds": found.feeds,
            "entries": found.entries,
            "bytes": found.bytes,
            "damaged": [_name(name) for name in found.damaged],
        }

    async def _chosen(self, request: dict[str, Any]) -> list[FeedView]:
        """Return the feeds of the requested kind and author. Raises BadId."""
        kind, author = _text(request, "kind"), _text(request, "author")
        if kind is not None and kind not in KINDS:
            raise ControlError(
                "bad-request", f"there are no feeds of kind `{kind}`", hint=f"kinds: {_KINDS}"
            )
        found = [view async for view in self._node.state.inspection.feeds()]
        if author is not None:
            author = self._author(author, {view.name.author for view in found})
        return [
            view
            for view in found
            if kind in (None, view.name.kind) and author in (None, view.name.author)
        ]

    def _author(self, asked: str, known: set[PeerId]) -> str:
        """Return the peer that the text means; `me` is this node. Raises BadId."""
        if asked == "me":
            return self._node.identity.peer
        some = self._node.state.interest.kept is not None
        hint = (
            "this node does not store all state: `shoal state show` says what it stores"
            if some
            else "`shoal state show` lists the authors; this node is `me`"
        )
        return meant(asked, known, "peer", hint=hint)

    async def _event(self, view: FeedView, *, facts: bool) -> dict[str, Any]:
        event = {
            "event": "feed",
            **_name(view.name),
            "epoch": view.head.epoch,
            "entries": 0 if view.forked else view.head.seq + 1,
            "bytes": view.size,
            "hash": view.head.hash.hex(),
            "forked": view.forked,
        }
        if facts:
            event["facts"] = await self._node.state.inspection.facts(view.name)
        return event


def _kept(keeps: Keeps) -> dict[str, list[int]] | None:
    """Return the stored parts of each kind of other nodes' feeds; None: all."""
    if keeps is None:
        return None
    parts: dict[str, list[int]] = {}
    for kind, part in sorted(keeps):
        parts.setdefault(kind, []).append(part)
    return parts


def _name(name: FeedName) -> dict[str, Any]:
    return {"author": name.author, "kind": name.kind, "part": name.part}


def _text(request: dict[str, Any], key: str) -> str | None:
    value = request.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise ControlError("bad-request", f"`{key}` is not a text of 1 to 256 characters")
    return value
