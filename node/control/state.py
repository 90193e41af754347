"""Control socket operations on the shared state of the swarm. Specified in docs/spec/control.md."""

from collections.abc import Mapping

from ...state.feeds.entry import FeedName
from ...state.feeds.kinds import KINDS
from ...state.inspection import FeedView, InspectedEntry
from ...state.replication.interest import Keeps
from ...state.service import State
from ...transport.identity import PeerId
from ...transport.shortid import meant
from ..errors import ControlError
from .messages import state as messages
from .messages.encoding import Json, object_of
from .server import Emit, Operation, operation

_KINDS = ", ".join(KINDS)


class StateOperations:
    """Control socket operations on the shared state that the node `own` knows."""

    def __init__(self, state: State, own: PeerId) -> None:
        self._state = state
        self._own = own

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.ShowState, self.show),
                operation(messages.LogState, self.log),
                operation(messages.VerifyState, self.verify),
                operation(messages.ExportState, self.export),
            )
        )

    async def show(self, ask: messages.ShowState, emit: Emit) -> messages.StateView:
        """Emit one event for each feed. If the request names an author, the events have the facts
        as well."""
        count = 0
        for view in await self._chosen(ask):
            await emit(await self._feed(view, facts=ask.author is not None))
            count += 1
        views, exchange = self._state.views, self._state.replication.exchange
        return messages.StateView(
            feeds=count,
            own=self._own,
            members=len(views.members),
            unreadable=views.bad,
            keeps=_kept(self._state.interest.stored),
            alone=_kept(frozenset(exchange.uncovered() if exchange.peers else ())),
        )

    async def export(self, ask: messages.ExportState, emit: Emit) -> messages.Exported:
        """Emit one event for each feed, with its facts."""
        count = 0
        for view in await self._chosen(ask):
            await emit(await self._feed(view, facts=True))
            count += 1
        return messages.Exported(count)

    async def log(self, ask: messages.LogState, emit: Emit) -> messages.Changes:
        """Emit one event for each change of a fact, feed by feed."""
        count = 0
        for view in await self._chosen(ask):
            async for said in self._state.inspection.history(view):
                for key, value in object_of(dict(said.changes), "changes").items():
                    if ask.key in (None, key):
                        count += 1
                        await emit(_change(view.name, said, key, value))
        return messages.Changes(count)

    async def verify(self, _ask: messages.VerifyState, _emit: Emit) -> messages.CheckedState:
        """Verify all signatures and hash chains in the store."""
        found = await self._state.inspection.verified()
        damaged = tuple(
            messages.FeedNameView(name.author, name.kind, name.part) for name in found.damaged
        )
        return messages.CheckedState(found.feeds, found.entries, found.bytes, damaged)

    async def _chosen(
        self, ask: messages.ShowState | messages.ExportState | messages.LogState
    ) -> list[FeedView]:
        """Return the feeds of the requested kind and author.

        Raises ControlError if there is no such kind, and BadId if the author is unknown or
        ambiguous.
        """
        kind, author = ask.kind, ask.author
        if kind is not None and kind not in KINDS:
            raise ControlError(
                "bad-request", f"there are no feeds of kind `{kind}`", hint=f"kinds: {_KINDS}"
            )
        found = [view async for view in self._state.inspection.feeds()]
        if author is not None:
            author = self._author(author, {view.name.author for view in found})
        return [
            view
            for view in found
            if kind in (None, view.name.kind) and author in (None, view.name.author)
        ]

    def _author(self, asked: str, known: set[PeerId]) -> str:
        """Return the peer whose id begins with `asked`; `me` means this node.

        `known` has the authors to choose from. Raises BadId if none or several match.
        """
        if asked == "me":
            return self._own
        some = self._state.interest.stored is not None
        hint = (
            "this node does not store all state: `shoal state show` says what it stores"
            if some
            else "`shoal state show` lists the authors; this node is `me`"
        )
        return meant(asked, known, "peer", hint=hint)

    async def _feed(self, view: FeedView, *, facts: bool) -> messages.FeedState:
        found = None
        if facts:
            found = object_of(await self._state.inspection.facts(view.name), "facts")
        return messages.FeedState(
            author=view.name.author,
            kind=view.name.kind,
            part=view.name.part,
            epoch=view.head.epoch,
            entries=0 if view.forked else view.head.seq + 1,
            bytes=view.size,
            hash=view.head.hash.hex(),
            forked=view.forked,
            facts=found,
        )


def _kept(keeps: Keeps) -> messages.Parts | None:
    """Return the stored parts of other nodes' feeds, grouped by kind. None means all parts."""
    if keeps is None:
        return None
    parts: dict[str, tuple[int, ...]] = {}
    for kind, part in sorted(keeps):
        parts[kind] = (*parts.get(kind, ()), part)
    return parts


def _change(name: FeedName, said: InspectedEntry, key: str, value: Json) -> messages.FactChange:
    return messages.FactChange(
        author=name.author,
        kind=name.kind,
        part=name.part,
        epoch=said.entry.epoch,
        seq=said.entry.seq,
        made=said.entry.made / 1000,
        earlier=said.entry.seq == 0,
        key=key,
        value=value,
    )
