"""Whose feeds are kept: this node, its group, those with a link, and whom they vouch for.

All of them hang in one tree: under the top the roots (this node, each member of its group, each
peer with a link, and one branch for all who had a link lately), under each author those that it
vouches for. There is one budget. When it is full, room is made where most is: from the top down
into the heaviest branch each time, so that a million keys behind k of L links get k/L of the room,
and those behind a link of a link no more than its part of that. Before somebody goes, it is hung
under another who vouches for it where less hangs. Sans-I/O; public keys name the authors.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from . import defaults


class Change(NamedTuple):
    """Whose feeds are kept from now on, and whose are not any more."""

    added: tuple[bytes, ...] = ()
    dropped: tuple[bytes, ...] = ()


class _Branch:
    """An author in the tree, or a place in it that is nobody's."""

    __slots__ = ("key", "kids", "load", "parent", "pinned", "vouchers", "vouches", "weight")

    def __init__(self, key: bytes, weight: int = 0) -> None:
        self.key = key
        self.parent: _Branch | None = None
        self.kids = _NOBODY  # one of its own once anybody hangs under it
        self.weight = weight  # bytes
        self.pinned = False  # never goes to make room
        self.load = weight  # of all from here on down that could go
        self.vouches: tuple[bytes, ...] = ()
        self.vouchers: tuple[_Branch, ...] = ()  # kept, at most VOUCHERS, nearest to the top

    def up(self) -> "Iterator[_Branch]":
        """Itself, whom it hangs under, and so on."""
        at: _Branch | None = self
        while at is not None:
            yield at
            at = at.parent


_NOBODY: Final[dict[bytes, _Branch]] = {}


class Authors:
    """Who is kept by one node. `own` is its public key."""

    def __init__(self, own: bytes, *, budget: int = defaults.FEEDS_BUDGET) -> None:
        """`budget`: bytes, of all authors together."""
        self._budget = budget
        self._top = _Branch(b"")
        self._past = _Branch(b"")  # those that had a link, longest ago first
        self._hang(self._past, self._top)
        self._kept: dict[bytes, _Branch] = {}
        self._linked: set[bytes] = set()
        self._group: set[bytes] = {own}
        self._total = 0
        self._gone = False  # somebody, since all that are vouched for were looked at
        self._added: dict[bytes, None] = {}
        self._dropped: dict[bytes, None] = {}
        self._own = own
        self._pin(own)
        self._changed()

    # Who is kept.

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> Collection[bytes]:
        return self._kept.keys()

    def vouchers(self, key: bytes) -> int:
        """How many kept authors vouch for it."""
        branch = self._kept.get(key)
        return 0 if branch is None else len(branch.vouchers)

    @property
    def total(self) -> int:
        """The weight of all, bytes."""
        return self._total

    # What changes it.

    def linked(self, key: bytes) -> Change:
        """There is a link to this peer."""
        self._linked.add(key)
        self._pin(key)
        return self._changed()

    def unlinked(self, key: bytes) -> Change:
        """The link is gone; so are, by and by, those that had one before many others."""
        if key in self._linked:
            self._linked.remove(key)
            if key not in self._group:
                self._unpin(self._kept[key])
        return self._changed()

    def grouped(self, keys: Iterable[bytes]) -> Change:
        """Who besides this node is in its group, from now on."""
        before, self._group = self._group, {self._own, *keys}
        for key in self._group - before:
            self._pin(key)
        for key in before - self._group - self._linked:
            self._unpin(self._kept[key])
        return self._changed()

    def vouches(self, key: bytes, names: Iterable[bytes]) -> Change:
        """For whom a kept author vouches from now on; beyond VOUCHED nobody is read."""
        branch = self._kept.get(key)
        if branch is None:
            return Change()
        before = branch.vouches
        some = tuple(dict.fromkeys(names))[: defaults.AUTHOR_VOUCHED]
        # Thousands name the same ones: of each key one object, not one for each who names it.
        branch.vouches = tuple(self._kept[n].key if n in self._kept else n for n in some)
        now = set(branch.vouches)
        for name in before:
            if name not in now and (other := self._kept.get(name)) is not None:
                self._withdraw(branch, other)
        for name in branch.vouches:
            if branch.key in self._kept:
                self._vouch(branch, name)
        return self._changed()

    def weigh(self, key: bytes, size: int) -> Change:
        """The entries of a kept author, or its facts in the views, take so many bytes."""
        branch = self._kept.get(key)
        if branch is not None:
            weight = weight_of(size)
            more, branch.weight = weight - branch.weight, weight
            self._total += more
            if not branch.pinned:
                self._burden(branch, more)
            self._make_room()
        return self._changed()

    def refill(self) -> Iterator[Change]:
        """Where there is room again, look at those who found none, a few vouchers at a time; others
        may change what they like in between."""
        if not self._gone or self._total >= defaults.FEEDS_ROOM * self._budget:
            return
        self._gone = False
        keys = list(self._kept)
        for start in range(0, len(keys), defaults.REFILLED_AT_ONCE):
            for key in keys[start : start + defaults.REFILLED_AT_ONCE]:
                branch = self._kept.get(key)
                if branch is not None:
                    self._revouch(branch)
            yield self._changed()
            if self._gone:
                return  # there is no room any more

    def _revouch(self, branch: _Branch) -> None:
        for name in branch.vouches:
            if not self._gone and branch.key in self._kept:
                self._vouch(branch, name)

    def _changed(self) -> Change:
        change = Change(tuple(self._added), tuple(self._dropped))
        if change.added or change.dropped:
            self._added, self._dropped = {}, {}
        return change

    # Those who stand by themselves.

    def _pin(self, key: bytes) -> None:
        branch = self._kept.get(key)
        if branch is None:
            branch = self._add(key, self._top)
        elif branch.pinned:
            return
        else:
            self._unhang(branch)
            self._hang(branch, self._top)
        branch.pinned = True
        self._burden(branch, -branch.weight)
        self._make_room()

    def _unpin(self, branch: _Branch) -> None:
        branch.pinned = False
        self._burden(branch, branch.weight)
        self._unhang(branch)
        self._hang(branch, self._past)
        if len(self._past.kids) > defaults.PAST_LINKS:
            self._rehang(next(iter(self._past.kids.values())))

    # Those that others vouch for.

    def _vouch(self, voucher: _Branch, name: bytes) -> None:
        branch = self._kept.get(name)
        if branch is None:
            if _depth(voucher) >= defaults.VOUCH_DEPTH:
                return
            branch = self._add(name, voucher)
            branch.vouchers = (voucher,)
            self._make_room()
        elif branch is not voucher and voucher not in branch.vouchers:
            branch.vouchers += (voucher,)
            if len(branch.vouchers) > defaults.VOUCHERS:
                branch.vouchers = tuple(sorted(branch.vouchers, key=_depth)[:-1])

    def _withdraw(self, voucher: _Branch, branch: _Branch) -> None:
        branch.vouchers = tuple(other for other in branch.vouchers if other is not voucher)
        if branch.parent is voucher:
            self._rehang(branch)

    def _rehang(self, branch: _Branch) -> None:
        """Under somebody else who vouches for it; where there is nobody, it goes."""
        others = [
            other
            for other in branch.vouchers
            if other is not branch.parent
            and branch not in other.up()
            and _depth(other) < defaults.VOUCH_DEPTH
        ]
        if not others:
            self._drop(branch)
            return
        self._unhang(branch)
        self._hang(branch, min(others, key=_root_load))
        self._trim(branch, _depth(branch))

    def _trim(self, branch: _Branch, depth: int) -> None:
        for kid in list(branch.kids.values()):
            if depth >= defaults.VOUCH_DEPTH:
                self._drop(kid)
            else:
                self._trim(kid, depth + 1)

    # Room.

    def _make_room(self) -> None:
        while self._total > self._budget and (branch := self._heaviest()) is not None:
            lighter = self._lighter(branch)
            if lighter is not None:
                self._unhang(branch)
                self._hang(branch, lighter)
            else:
                self._drop(branch)

    def _heaviest(self) -> _Branch | None:
        """Who goes first: of branches as heavy as each other, the youngest."""
        at = self._top
        while at.load:
            own = 0 if at.pinned else at.weight
            kid: _Branch | None = None
            for other in at.kids.values():
                if other.load and (kid is None or other.load >= kid.load):
                    kid = other
            if kid is None or (own > kid.load and at.parent is not None):
                return at
            at = kid
        return None

    def _lighter(self, branch: _Branch) -> _Branch | None:
        """Somebody who vouches for it, on a branch that even with it is lighter than the one it is
        on; for one with nobody under it."""
        if branch.kids:
            return None
        here = list(branch.up())[::-1]
        for other in branch.vouchers:
            there = list(other.up())[::-1]
            if other is branch.parent or len(there) > defaults.VOUCH_DEPTH:
                continue
            fork = next(n for n, each in enumerate(here) if n == len(there) or each is not there[n])
            load = there[fork].load if fork < len(there) else 0
            if load + branch.weight < here[fork].load:
                return other
        return None

    # The tree.

    def _add(self, key: bytes, parent: _Branch) -> _Branch:
        branch = self._kept[key] = _Branch(key, weight_of(0))
        self._total += branch.weight
        self._hang(branch, parent)
        if key in self._dropped:
            del self._dropped[key]
        else:
            self._added[key] = None
        return branch

    def _drop(self, branch: _Branch) -> None:
        """It goes, and those under it whom nobody else vouches for."""
        for name in branch.vouches:
            other = self._kept.get(name)
            if other is not None and branch in other.vouchers:
                other.vouchers = tuple(each for each in other.vouchers if each is not branch)
        for kid in list(branch.kids.values()):
            self._rehang(kid)
        self._unhang(branch)
        del self._kept[branch.key]
        self._total -= branch.weight
        self._gone = True
        if branch.key in self._added:
            del self._added[branch.key]
        else:
            self._dropped[branch.key] = None

    def _hang(self, branch: _Branch, parent: _Branch) -> None:
        branch.parent = parent
        parent.kids = parent.kids or {}
        parent.kids[branch.key] = branch
        self._burden(parent, branch.load)

    def _unhang(self, branch: _Branch) -> None:
        assert branch.parent is not None
        del branch.parent.kids[branch.key]
        self._burden(branch.parent, -branch.load)
        branch.parent = None

    @staticmethod
    def _burden(branch: _Branch, more: int) -> None:
        for each in branch.up():
            each.load += more


def weight_of(size: int) -> int:
    """What an author weighs whose entries, or whose facts in the views, take `size` bytes."""
    return max(defaults.AUTHOR_WEIGHT + size, defaults.AUTHOR_LEAST)


def _depth(branch: _Branch) -> int:
    """How far below the top."""
    return sum(1 for _ in branch.up()) - 1


def _root_load(branch: _Branch) -> int:
    """What hangs under the root that it is under."""
    load = 0
    for each in branch.up():
        if each.parent is not None:
            load = each.load
    return load
