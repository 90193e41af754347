"""The base of all views, and how a task watches one.

A view holds what it read of each fact, never the fact's bytes, and changes with each change of
one: nothing is ever derived anew from everything. What it shows depends on the feeds alone, not on
clocks, nor on the order in which they came.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

import trio

from ...transport.identity import PeerId
from .. import defaults
from ..digest import Plot
from ..entry import FeedName
from ..errors import BadFact

Fact = TypeVar("Fact")
Subject = TypeVar("Subject")
Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Change(Generic[Subject, Shown]):
    """Something that a view shows is another now. Where `subject` is None, so much is that the
    watcher has to ask again for all that it uses."""

    subject: Subject | None
    value: Shown | None  # as it is when the watcher gets it; None: it is gone


class View(ABC, Generic[Subject, Fact, Shown]):
    """What is derived from all feeds of some kinds. `Fact`: what it reads in a fact; `Subject`:
    of what it tells; `Shown`: what it tells of one."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self.bad = 0  # times that a fact was none of this kind, and passed over
        # By kind and part, then author: a name of its own for each of 50,000 feeds takes 4 MB.
        self._facts: dict[Plot, dict[PeerId, dict[str, Fact]]] = {}
        self._watches: WeakSet[Watch[Subject, Shown]] = WeakSet()

    def changed(self, name: FeedName, key: str, value: Mapping[str, Any] | None) -> None:
        """A fact of a feed is another one, or is no more (None)."""
        key = sys.intern(key)  # the same ones stand in thousands of feeds, and in what is read
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
        """A feed has forked, or is not kept any more: nothing of it counts."""
        for key in self.keys(name):
            self.changed(name, key, None)

    def keys(self, name: FeedName) -> Collection[str]:
        """The keys of the facts of a feed that count."""
        return tuple(self._said(name))

    def takes(self, name: FeedName, key: str, value: Mapping[str, Any]) -> bool:
        """Whether a fact would count, as it is: every reader would read this of it."""
        try:
            self._read(name, key, value)
        except BadFact:
            return False
        return True

    @abstractmethod
    def get(self, subject: Subject) -> Shown | None:
        """What the view shows of a subject now."""

    def watch(self) -> "Watch[Subject, Shown]":
        """What changes from now on: `async for change in view.watch()`."""
        watch = Watch(self)
        self._watches.add(watch)
        return watch

    @abstractmethod
    def _read(self, name: FeedName, key: str, value: Mapping[str, Any]) -> Fact:
        """What the view needs of a fact. Raises BadFact."""

    @abstractmethod
    def _replace(self, name: FeedName, key: str, old: Fact | None, new: Fact | None) -> None:
        """Keep what is derived up to date, and `_tell`. `_facts` has the new one already."""

    def _tell(self, subject: Subject) -> None:
        if not self._watches:
            return
        for watch in self._watches:
            watch.note(subject)

    def _said(self, name: FeedName) -> Mapping[str, Fact]:
        """The facts of a feed that count."""
        return self._facts.get((name.kind, name.part), {}).get(name.author, {})

    def _try(self, name: FeedName, key: str, value: Mapping[str, Any]) -> Fact | None:
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
    """The changes of a view, for one task. Several of one subject are one, and are told as it is
    then; of a slow watcher at most WATCHED subjects are remembered. It ends when let go of."""

    def __init__(self, view: View[Subject, Any, Shown]) -> None:
        self._view = view
        self._subjects: dict[Subject, None] = {}
        self._too_many = False
        self._waiting = trio.lowlevel.ParkingLot()

    def note(self, subject: Subject) -> None:
        """The view shows something else of this one."""
        if self._too_many:
            return
        self._subjects[subject] = None
        if len(self._subjects) > defaults.WATCHED:
            self._subjects.clear()
            self._too_many = True
        self._waiting.unpark()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._subjects) + self._too_many

    def __aiter__(self) -> "Watch[Subject, Shown]":
        return self

    async def __anext__(self) -> Change[Subject, Shown]:
        await trio.lowlevel.checkpoint()
        while (change := self.next_now()) is None:
            await self._waiting.park()
        return change

    def next_now(self) -> Change[Subject, Shown] | None:
        """The next change, without waiting for one."""
        if self._too_many:
            self._too_many = False
            return Change(None, None)
        for subject in self._subjects:
            del self._subjects[subject]
            return Change(subject, self._view.get(subject))
        return None
