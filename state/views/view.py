"""What all views have in common: updates from changes of feeds, and watchers of their changes.

A view stores the values that it reads from facts, not the facts' bytes. It is updated with each
changed fact, and never rebuilt from scratch. Its content depends only on the feeds, and not on
clocks or on the order in which entries arrive.

The views of a node are listed in `views.py`. They check the fields of facts with the functions of
`fields.py`. Spec: docs/spec/state.md, Facts.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

import trio

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.digest import Plot
from ..feeds.entry import FeedName
from ..feeds.feed import EntryOutcome, EntryVerdict
from ..feeds.kinds import KINDS, all_parts
from ..replication.replicafeeds import Watcher
from .fields import read_fields

Fact = TypeVar("Fact")
Subject = TypeVar("Subject")
Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class ViewChange(Generic[Subject, Shown]):
    """A change of one subject in a view.

    If `subject` is None, so much has changed that single changes were discarded, and the watcher
    must read everything that it uses again.
    """

    subject: Subject | None
    value: Shown | None  # the value when the watcher gets the change; None if removed


class View(ABC, Generic[Subject, Fact, Shown]):
    """An index derived from all feeds of the kinds in `kinds`.

    Type parameters: `Subject` is the key of the index, `Fact` the value read from one fact, and
    `Shown` the value of the index for one subject.
    """

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self.bad = 0  # number of malformed facts that were skipped
        # By kind and part, then by author. A FeedName for each of 50,000 feeds would take 4 MB.
        self.facts: dict[Plot, dict[PeerId, dict[str, Fact]]] = {}
        self.watches: WeakKeyDictionary[ViewWatch[Subject, Shown], None] = WeakKeyDictionary()
        """The watches of this view, as long as something holds them."""

    def changed(self, name: FeedName, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact of a feed, or remove the fact if `value` is None.

        A malformed fact counts as removed.
        """
        key = sys.intern(key)  # thousands of feeds have the same keys
        fact = None if value is None else self._try(name, key, value)
        old = self._said(name).get(key)
        if fact == old:
            return
        if fact is None:
            self._take_out(name, key)
        else:
            authors = self.facts.setdefault((name.kind, name.part), {})
            authors.setdefault(name.author, {})[key] = fact
        self._replace(name, key, old, fact)

    def forgotten(self, name: FeedName) -> None:
        """Remove all facts of a feed, because the feed has forked, is hidden, or is no longer
        stored."""
        for key in self.keys(name):
            self.changed(name, key, None)

    def keys(self, name: FeedName) -> Collection[str]:
        """Return the keys of a feed's valid facts."""
        return tuple(self._said(name))

    def takes(self, name: FeedName, key: str, value: Mapping[str, object]) -> bool:
        """Return whether the view would accept this fact."""
        try:
            self._read(name, key, value)
        except BadFact:
            return False
        return True

    @abstractmethod
    def get(self, subject: Subject) -> Shown | None:
        """Return the current value of a subject, or None if it has none."""

    def watch(self) -> "ViewWatch[Subject, Shown]":
        """Return a watcher of the changes from now on.

        Use it as in `async for change in view.watch()`.
        """
        watch = ViewWatch(self.get)
        self.watches[watch] = None
        return watch

    @abstractmethod
    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> Fact:
        """Return the value that the view needs from a fact.

        Raises BadFact if the fact is malformed.
        """

    @abstractmethod
    def _replace(self, name: FeedName, key: str, old: Fact | None, new: Fact | None) -> None:
        """Update the derived indexes after a change of one fact, and call `_tell` for its subject.

        `facts` contains the new value already. `old` or `new` is None if there was or is no fact.
        """

    def _tell(self, subject: Subject) -> None:
        if not self.watches:
            return
        for watch in self.watches:
            watch.note(subject)

    def _said(self, name: FeedName) -> Mapping[str, Fact]:
        """Return the values of a feed's valid facts, by key."""
        return self.facts.get((name.kind, name.part), {}).get(name.author, {})

    def _try(self, name: FeedName, key: str, value: Mapping[str, object]) -> Fact | None:
        try:
            return self._read(name, key, value)
        except BadFact:
            self.bad += 1
            return None

    def _take_out(self, name: FeedName, key: str) -> None:
        authors = self.facts[name.kind, name.part]
        del authors[name.author][key]
        if not authors[name.author]:
            del authors[name.author]
        if not authors:
            del self.facts[name.kind, name.part]


class ViewWatch(Generic[Subject, Shown]):
    """The changes of a view, for one task.

    Several changes of one subject are merged, and delivered with the subject's current value. If a
    slow watcher falls behind by more than WATCHED subjects, one change without a subject replaces
    them. The view keeps only a weak reference, so the watch ends when its user drops it.
    """

    def __init__(self, get: Callable[[Subject], Shown | None]) -> None:
        self._get = get
        self._subjects: dict[Subject, None] = {}
        self._too_many = False
        self._waiting = trio.lowlevel.ParkingLot()

    def note(self, subject: Subject) -> None:
        """Add a changed subject to the pending changes."""
        if self._too_many:
            return
        self._subjects[subject] = None
        if len(self._subjects) > defaults.WATCHED:
            self._subjects.clear()
            self._too_many = True
        self._waiting.unpark()

    def __len__(self) -> int:
        """Return the number of pending changes."""
        return len(self._subjects) + self._too_many

    def __aiter__(self) -> "ViewWatch[Subject, Shown]":
        return self

    async def __anext__(self) -> ViewChange[Subject, Shown]:
        await trio.lowlevel.checkpoint()
        while (change := self.next_now()) is None:
            await self._waiting.park()
        return change

    def next_now(self) -> ViewChange[Subject, Shown] | None:
        """Return the next change without waiting, or None if there is none."""
        if self._too_many:
            self._too_many = False
            return ViewChange(None, None)
        for subject in self._subjects:
            del self._subjects[subject]
            return ViewChange(subject, self._get(subject))
        return None


class StepCounter:
    """Counter that ends a step after a number of values or of bytes, so that other tasks can run.

    Bytes count too, because a single value of a few KiB may take a millisecond.
    """

    def __init__(self) -> None:
        self._values = self._bytes = 0

    def ends_with(self, value: bytes | None) -> bool:
        """Count one value, or a deletion if `value` is None.

        Return True if the step ends with it.
        """
        self._values += 1
        self._bytes += len(value or b"")
        if self._values < defaults.SHOWN_AT_ONCE and self._bytes < defaults.SHOWN_BYTES:
            return False
        self._values = self._bytes = 0
        return True


Shows = Callable[[PeerId, str], bool]


def show_all(_author: PeerId, _kind: str) -> bool:
    """Show the feeds of all authors, as a node in no group does."""
    return True


class ViewSet(Watcher):
    """Views that are updated together, as one watcher of the replica.

    `telling` are the kinds of feeds whose changes `on_change` reports. `shows` returns whether an
    author's feeds of a kind count, so that their facts are shown.
    """

    def __init__(
        self, views: Iterable[View[Any, Any, Any]], telling: Container[str], shows: Shows = show_all
    ) -> None:
        self._shows = shows
        self.on_change: list[Callable[[PeerId], None]] = []
        """Called with an author after a change of a feed of one of the kinds `telling`."""
        self._telling = telling
        self._unreadable = 0
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
        if view is None or not self._shows(name.author, name.kind):
            return
        gone = [key for key in view.keys(name) if key not in verdict.changed and verdict.fresh]
        changes = chain(((key, None) for key in gone), verdict.changed.items())
        steps = StepCounter()
        for key, value in changes:
            view.changed(name, key, None if value is None else self._read(value))
            if steps.ends_with(value):
                yield
                if not self._shows(name.author, name.kind):
                    return  # the author was hidden between two steps
        if name.kind in self._telling:
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

    def _tell(self, author: PeerId) -> None:
        for told in self.on_change:
            told(author)

    def _read(self, value: bytes) -> Mapping[str, object] | None:
        try:
            return read_fields(value)
        except BadFact:
            self._unreadable += 1
            return None
