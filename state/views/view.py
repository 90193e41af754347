"""Base class of all views, watchers of their changes, and functions that read the fields of facts.

A view stores the values that it reads from facts, not the facts' bytes. It is updated with each
changed fact, and never rebuilt from scratch. Its content depends only on the feeds, and not on
clocks or on the order in which entries arrive.

Facts come from peers, so the types and limits of their fields are checked. Unknown fields stay in
the feed's document, and are ignored here. Spec: docs/spec/state.md, Facts.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar
from weakref import WeakKeyDictionary

import trio

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadFact
from ..feeds.digest import Plot
from ..feeds.entry import FeedName

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
        self._facts: dict[Plot, dict[PeerId, dict[str, Fact]]] = {}
        self._watches: WeakKeyDictionary[ViewWatch[Subject, Shown], None] = WeakKeyDictionary()

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
            authors = self._facts.setdefault((name.kind, name.part), {})
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
        self._watches[watch] = None
        return watch

    @abstractmethod
    def _read(self, name: FeedName, key: str, value: Mapping[str, object]) -> Fact:
        """Return the value that the view needs from a fact.

        Raises BadFact if the fact is malformed.
        """

    @abstractmethod
    def _replace(self, name: FeedName, key: str, old: Fact | None, new: Fact | None) -> None:
        """Update the derived indexes after a change of one fact, and call `_tell` for its subject.

        `_facts` contains the new value already. `old` or `new` is None if there was or is no fact.
        """

    def _tell(self, subject: Subject) -> None:
        if not self._watches:
            return
        for watch in self._watches:
            watch.note(subject)

    def _said(self, name: FeedName) -> Mapping[str, Fact]:
        """Return the values of a feed's valid facts, by key."""
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


T = TypeVar("T")
Fields = Mapping[str, object]
_ROOT = re.compile(r"[0-9a-f]{64}")
_PEER = re.compile(r"[1-9A-HJ-NP-Za-km-z]{52}")


def read_fields(value: bytes) -> Fields:
    """Decode a fact's value, which is a map with text keys.

    Raises BadFact if it is anything else.
    """
    try:
        fields = decode(value, limit=defaults.FACT_BYTES, once=True)
    except Undecodable:
        raise BadFact("malformed fact") from None
    if not isinstance(fields, dict) or not all(type(key) is str for key in fields):
        raise BadFact("expected a fact to be a map with text keys")
    return fields


def read_whole(value: object, most: int, least: int = 0) -> int:
    """Return a whole number, clamped to the range from `least` to `most`.

    Raises BadFact if the value is not a whole number.
    """
    if type(value) is not int:
        raise BadFact("expected a whole number in a fact")
    return min(max(value, least), most)


def read_rate(value: object, most: float, least: float = 0.0) -> float:
    """Return a number, clamped to the range from `least` to `most`.

    Raises BadFact if the value is not a finite number.
    """
    if type(value) is not int and type(value) is not float:
        raise BadFact("expected a number in a fact")
    if type(value) is float and not math.isfinite(value):
        raise BadFact("expected a finite number in a fact")
    return float(min(max(value, least), most))


def read_text(value: object, most: int) -> str:
    """Return text that is safe to print on a terminal.

    Raises BadFact if the value is not printable text of at most `most` bytes.
    """
    if type(value) is not str or not value.isprintable() or len(value.encode()) > most:
        raise BadFact(f"expected printable text of at most {most} bytes in a fact")
    return value


def read_bytes(value: object, most: int) -> bytes:
    """Return a byte string. Raises BadFact if the value is not one of at most `most` bytes."""
    if type(value) is not bytes or len(value) > most:
        raise BadFact(f"expected at most {most} bytes in a fact")
    return value


def read_root(value: object) -> str:
    """Return 64 hex digits, which identify a model or a job.

    Raises BadFact if the value is anything else.
    """
    if type(value) is not str or not _ROOT.fullmatch(value):
        raise BadFact("expected 64 hex digits in a fact")
    return value


def read_peer(value: object) -> PeerId:
    """Return a peer id. Raises BadFact if the value does not have the form of a peer id.

    The key in the peer id is not decoded and checked, because the id is only compared with others.
    """
    if type(value) is not str or not _PEER.fullmatch(value):
        raise BadFact("expected a peer id in a fact")
    return PeerId(value)


def read_each(value: object, most: int, read: Callable[[object], T]) -> tuple[T, ...]:
    """Return a list's items, each converted by `read`.

    Raises BadFact if the value is not a list of at most `most` items, or if `read` refuses an item.
    """
    if type(value) is not list or len(value) > most:
        raise BadFact(f"expected a list of at most {most} items in a fact")
    return tuple(read(item) for item in value)
