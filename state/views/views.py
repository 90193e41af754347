"""All views of a node, and their updates from changes of its feeds."""

from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain
from typing import Any

from ...transport.identity import PeerId
from ..errors import BadFact
from ..feeds.entry import FeedName
from ..feeds.feed import EntryOutcome, EntryVerdict
from ..feeds.kinds import KINDS, all_parts
from ..membership.record import MemberRecord
from ..replication.holding import Watcher
from .jobs import Jobs
from .members import Member, Members
from .models import ModelNames
from .placements import Placements
from .tuning import TuningFacts
from .usage import Usage
from .view import StepCounter, View, read_fields

DESCRIBING = frozenset((*Members.kinds, *ModelNames.kinds, *Placements.kinds))
"""Kinds of feeds from which `Views.record` is assembled."""


class Views(Watcher):
    """All views of a node, which are updated together as one watcher of the replica."""

    def __init__(self) -> None:
        self.shows: Callable[[PeerId, str], bool] = lambda author, kind: True
        """Returns whether an author's feeds of a kind count, so that their facts are shown."""
        self.members = Members()
        self.models = ModelNames()
        self.placements = Placements()
        self.jobs = Jobs()
        self.usage = Usage()
        self.tunings = TuningFacts()
        self._unreadable = 0
        views: tuple[View[Any, Any, Any], ...] = (
            self.members,
            self.models,
            self.placements,
            self.jobs,
            self.usage,
            self.tunings,
        )
        self.on_change: list[Callable[[PeerId], None]] = []
        """Called with an author after a change of a feed that its `record` is assembled from."""
        self._by_kind = {kind: view for view in views for kind in view.kinds}

    @property
    def bad(self) -> int:
        """The number of malformed facts that were skipped."""
        return self._unreadable + sum(view.bad for view in dict.fromkeys(self._by_kind.values()))

    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        """Apply the changes of a new entry. The proof of a fork removes all facts of the feed."""
        for _ in self.steps(name, verdict):
            pass

    def steps(self, name: FeedName, verdict: EntryVerdict) -> Iterator[None]:
        view = self._by_kind.get(name.kind)
        if view is None or not self.shows(name.author, name.kind):
            return
        gone = [key for key in view.keys(name) if key not in verdict.changed and verdict.fresh]
        changes = chain(((key, None) for key in gone), verdict.changed.items())
        steps = StepCounter()
        for key, value in changes:
            view.changed(name, key, None if value is None else self._read(value))
            if steps.ends_with(value):
                yield
                if not self.shows(name.author, name.kind):
                    return  # the author was hidden between two steps
        if name.kind in DESCRIBING:
            self._tell(name.author)

    def restored(self, name: FeedName, facts: Mapping[str, bytes]) -> None:
        """Replace all facts of a feed by these, which were read from the disk."""
        for _ in self.restoring(name, facts):
            pass

    def restoring(self, name: FeedName, facts: Mapping[str, bytes]) -> Iterator[None]:
        """Replace all facts of a feed by these, in steps between which other tasks run."""
        return self.steps(name, EntryVerdict(EntryOutcome.NEWS, changed=facts, fresh=True))

    def dropped(self, author: PeerId) -> None:
        """Remove all facts of an author whose feeds are no longer stored."""
        self.hide(author, KINDS)

    def hide(self, author: PeerId, kinds: Container[str]) -> None:
        """Remove all facts of an author's feeds of these kinds."""
        for kind, part in all_parts():
            if kind in kinds and (view := self._by_kind.get(kind)) is not None:
                view.forgotten(FeedName(author, kind, part))
        self._tell(author)

    def takes(self, name: FeedName, key: str, value: Mapping[str, object]) -> bool:
        """Return whether the view of the feed's kind would accept this fact."""
        view = self._by_kind.get(name.kind)
        return view is not None and view.takes(name, key, value)

    def record(self, peer: PeerId) -> MemberRecord:
        """Return a member's record, assembled from the facts in its feeds.

        The record includes the shards of earlier serving runs. Fields that are not facts have their
        defaults.
        """
        member = self.members.get(peer) or Member(peer)
        return MemberRecord(
            peer=peer,
            seq=0,
            version=member.version,
            capacity=member.capacity,
            models=self.models.of(peer),
            shards=self.placements.of(peer),
            shared=member.shared,
            links=member.links,
        )

    def _tell(self, author: PeerId) -> None:
        for told in self.on_change:
            told(author)

    def _read(self, value: bytes) -> Mapping[str, object] | None:
        try:
            return read_fields(value)
        except BadFact:
            self._unreadable += 1
            return None
