"""Base class of all views, and watchers of their changes.

A view holds the values that it read from facts, not the facts' bytes. It is updated with each
changed fact and never rebuilt from scratch. Its content depends only on the feeds, not on clocks or
on the order of arrival.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar
from weakref import WeakSet

import trio

from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.digest import Plot
from ..feeds.entry import FeedName

Fact = TypeVar("Fact")
Subject = TypeVar("Subject")
Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Change(Generic[Subject, Shown]):
    """A change of one subject in a view.

    If `subject` is None, too much has changed, and the watcher must read everything that it uses
    again.
    """

    subject: Subject | None
    value: Shown | None  # the value when the watcher gets the change; None if removed


class View(ABC, Generic[Subject, Fact, Shown]):
    """An index derived from all feeds of certain kinds.

    `Fact` is the value read from one fact, `Subject` the key of the view, and `Shown` its value for
    one subject.
    """

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self.bad = 0  # number of malformed facts that were skipped
        # By kind and part, then by author. A FeedName for each of 50,000 feeds would take 4 MB.
        self._facts: dict[Plot, dict[PeerId, dict[str, Fact]]] = {}
        self._watches: WeakSet[Watch[Subject, Shown]] = WeakSet()

    def changed(self, name: FeedName, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact of a feed, or remove it (None)."""
        key = sys.intern(key)  # thousands of feeds have the same keys
        fact = None if value is None else self._try(name, key, value)
        old = self._said(name).get(key)
        if fact == old:
            return
        if fact is None:
            self._take_out(name, key)
        else:
            authors = self._facts.setdefault((name.kind, name.part), {})
            authors.setdefault(name.author, {})[key] = fact
        self._replace(name, key, old, fact)

    def forgotten(self, name: FeedName) -> None:
        """Remove all facts of a feed, because it has forked or is no longer kept."""
        for key in self.keys(name):
            self.changed(name, key, None)

    def keys(self, name: FeedName) -> Collection[str]:
        """Return the keys of a feed's valid facts."""
        return tuple(self._said(name))

    def takes(self, name: FeedName, key: str, value: Mapping[str, object]) -> bool:
        """Whether the view would accept this fact."""
        try:
            self._read(name, key, value)
        except BadFact:
            return False
        return True

    @abstractmethod
    def get(self, subject: Subject) -> Shown | None:
        """Return the current value of a subject, or None."""

    def watch(self) -> "Watch[Subject, Shown]":
        """Watch the changes from now on: `async for change in view.watch()`."""
        watch = Watch(self.get)
        self._watches.add(watch)
        return watch

    @abstractmethod
    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> Fact:
        """Return the value that the view needs from a fact. Raises BadFact."""

    @abstractmethod
    def _replace(self, name: FeedName, key: str, old: Fact | None, new: Fact | None) -> None:
        """Update the derived data after a changed fact, and call `_tell`. `_facts` is updated
        already."""

    def _tell(self, subject: Subject) -> None:
        if not self._watches:
            return
        for watch in self._watches:
            watch.note(subject)

    def _said(self, name: FeedName) -> Mapping[str, Fact]:
        """Return a feed's valid facts."""
        return self._facts.get((name.kind, name.part), {}).get(name.author, {})

    def _try(self, name: FeedName, key: str, value: Mapping[str, object]) -> Fact | None:
        try:
            return self._read(name, key, value)
        except BadFact:
            self.bad += 1
            return None

    def _take_out(self, name: FeedName, key: str) -> None:
        authors = self._facts[name.kind, name.part]
        del authors[name.author][key]
        if not authors[name.author]:
            del authors[name.author]
        if not authors:
            del self._facts[name.kind, name.part]


class Watch(Generic[Subject, Shown]):
    """The changes of a view, for one task.

    Several changes of a subject are merged, and delivered with its current value. At most WATCHED
    subjects are remembered for a slow watcher. The watch ends when it is no longer referenced.
    """

    def __init__(self, get: Callable[[Subject], Shown | None]) -> None:
        self._get = get
        self._subjects: dict[Subject, None] = {}
        self._too_many = False
        self._waiting = trio.lowlevel.ParkingLot()

    def note(self, subject: Subject) -> None:
        """Note that a subject has changed."""
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

    def __aiter__(self) -> "Watch[Subject, Shown]":
        return self

    async def __anext__(self) -> Change[Subject, Shown]:
        await trio.lowlevel.checkpoint()
        while (change := self.next_now()) is None:
            await self._waiting.park()
        return change

    def next_now(self) -> Change[Subject, Shown] | None:
        """Return the next change without waiting, or None."""
        if self._too_many:
            self._too_many = False
            return Change(None, None)
        for subject in self._subjects:
            del self._subjects[subject]
            return Change(subject, self._get(subject))
        return None
