"""Whose feeds are kept: this node, its group, those with a link, and whom they vouch for.

All of them hang in one tree: under the top the roots (this node, each member of its group, each
peer with a link, and one branch for all who had a link lately), under each author those that it
vouches for. There is one budget. When it is full, room is made where most is: from the top down
into the heaviest branch each time, so that a million keys behind k of L links get k/L of the room,
and those behind a link of a link no more than its part of that. A peer with a link is one of them
for what it weighs above a share that it has for nothing. Before somebody goes, it is hung under
another who vouches for it where less hangs; thousands whose voucher went are looked at a few at a
time. Sans-I/O; public keys name the authors.
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

    __slots__ = ("free", "key", "kids", "load", "parent", "vouchers", "vouches", "weight")

    def __init__(self, key: bytes, weight: int = 0, free: int = 0) -> None:
        self.key = key
        self.parent: _Branch | None = None
        self.kids = _NOBODY  # one of its own once anybody hangs under it
        self.weight = weight  # bytes
        self.free = free  # bytes of the weight that make no room for others
        self.load = self.burden  # of all from here on down
        self.vouches: tuple[bytes, ...] = ()
        self.vouchers: tuple[_Branch, ...] = ()  # at most VOUCHERS, and some that have gone

    @property
    def burden(self) -> int:
        """What it weighs without what is free."""
        return max(self.weight - self.free, 0)

    @property
    def hangs(self) -> bool:
        """Whether it has not gone."""
        return self.parent is not None

    def up(self) -> "Iterator[_Branch]":
        """Itself, whom it hangs under, and so on."""
        at: _Branch | None = self
        while at is not None:
            yield at
            at = at.parent


_ALL: Final = 2**63
_NOBODY: Final[dict[bytes, _Branch]] = {}


class Authors:
    """Who is kept by one node. `own` is its public key."""

    def __init__(self, own: bytes, *, budget: int = defaults.FEEDS_BUDGET) -> None:
        """`budget`: bytes, of all authors together."""
        self._budget = budget
        self._top = _Branch(b"")
        self._past = _Branch(b"past")  # those that had a link, longest ago first
        self._hang(self._past, self._top)
        self._loose = _Branch(b"loose")  # those whose voucher went, until they are looked at
        self._hang(self._loose, self._top)
        self._kept: dict[bytes, _Branch] = {}
        self._linked: set[bytes] = set()
        self._group: set[bytes] = set()
        self._total = 0
        self._gone = False  # somebody, since all that are vouched for were looked at
        self._added: dict[bytes, None] = {}
        self._dropped: dict[bytes, None] = {}
        self._own = own
        self.grouped(())

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
        return 0 if branch is None else sum(other.hangs for other in branch.vouchers)

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
            self._unpin(key)
        return self._changed()

    def grouped(self, keys: Iterable[bytes]) -> Change:
        """Who besides this node is in its group, from now on."""
        before, self._group = self._group, {self._own, *keys}
        for key in self._group - before:
            self._pin(key)
        for key in before - self._group:
            self._unpin(key)
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
            self._total -= branch.weight
            self._reckon(branch, weight_of(size), branch.free)
            self._total += branch.weight
            self._make_room()
        return self._changed()

    def refill(self) -> Iterator[Change]:
        """Where there is room again, look at those who found none, a few vouchers at a time; others
        may change what they like in between."""
        if not self._gone or self._total >= defaults.FEEDS_ROOM * self._budget:
            return
        self._gone = False
        for key in self._linked - self._kept.keys():
            self._pin(key)
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

    @property
    def unsettled(self) -> bool:
        """Whether more follows of what was changed: `settle` is to be called."""
        return bool(self._loose.kids) or (self._total > self._budget and self._top.load > 0)

    def settle(self) -> Change:
        """What follows of it next."""
        return self._changed()

    def _changed(self) -> Change:
        for _ in range(defaults.SETTLED_AT_ONCE):
            if not self._loose.kids:
                break
            self._rehang(next(iter(self._loose.kids.values())))
        self._make_room()
        change = Change(tuple(self._added), tuple(self._dropped))
        if change.added or change.dropped:
            self._added, self._dropped = {}, {}
        return change

    # Those who stand by themselves.

    def _pin(self, key: bytes) -> None:
        branch = self._kept.get(key)
        if branch is None:
            branch = self._add(key, self._top)
        elif branch.parent is not self._top:
            self._unhang(branch)
            self._hang(branch, self._top)
        self._reckon(branch, branch.weight, self._free_of(key))
        self._make_room()

    def _unpin(self, key: bytes) -> None:
        """It is in the group no more, or has no link any more."""
        branch = self._kept.get(key)
        if branch is None:
            return  # it weighed too much
        self._reckon(branch, branch.weight, self._free_of(key))
        if key not in self._group and key not in self._linked:
            self._unhang(branch)
            self._hang(branch, self._past)
            if len(self._past.kids) > defaults.PAST_LINKS:
                self._rehang(next(iter(self._past.kids.values())))
        self._make_room()

    def _free_of(self, key: bytes) -> int:
        """What makes no room: all of who is in the group, a share of who has a link."""
        if key in self._group:
            return _ALL
        share = max(self._budget // defaults.LINKED_SHARE, defaults.AUTHOR_LEAST)
        return share if key in self._linked else 0

    # Those that others vouch for.

    def _vouch(self, voucher: _Branch, name: bytes) -> None:
        branch = self._kept.get(name)
        if branch is None:
            if _depth(voucher) >= defaults.VOUCH_DEPTH:
                return
            branch = self._add(name, self._top if self._free_of(name) else voucher)
            branch.vouchers = (voucher,)
            self._make_room()
        elif branch is not voucher and voucher not in branch.vouchers:
            branch.vouchers += (voucher,)
            if len(branch.vouchers) > defaults.VOUCHERS:
                there = (other for other in branch.vouchers if other.hangs)
                branch.vouchers = tuple(sorted(there, key=_depth)[: defaults.VOUCHERS])

    def _withdraw(self, voucher: _Branch, branch: _Branch) -> None:
        branch.vouchers = tuple(other for other in branch.vouchers if other is not voucher)
        if branch.parent is voucher:
            self._loosen(branch)

    def _loosen(self, branch: _Branch) -> None:
        """Whoever it hung under vouches for it no more."""
        self._unhang(branch)
        self._hang(branch, self._loose)

    def _rehang(self, branch: _Branch) -> None:
        """Under somebody else who vouches for it; where there is nobody, it goes."""
        others = [
            other
            for other in branch.vouchers
            if other.hangs
            and other is not branch.parent
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
                self._loosen(kid)
            else:
                self._trim(kid, depth + 1)

    # Room.

    def _make_room(self) -> None:
        """A little at a time (`unsettled`)."""
        for _ in range(defaults.SETTLED_AT_ONCE):
            if self._total <= self._budget or (branch := self._heaviest()) is None:
                break
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
            own = at.burden
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
            if not other.hangs or other is branch.parent or len(there) > defaults.VOUCH_DEPTH:
                continue
            fork = next(n for n, each in enumerate(here) if n == len(there) or each is not there[n])
            load = there[fork].load if fork < len(there) else 0
            if load + branch.weight < here[fork].load:
                return other
        return None

    # The tree.

    def _add(self, key: bytes, parent: _Branch) -> _Branch:
        branch = self._kept[key] = _Branch(key, weight_of(0), self._free_of(key))
        self._total += branch.weight
        self._hang(branch, parent)
        if key in self._dropped:
            del self._dropped[key]
        else:
            self._added[key] = None
        return branch

    def _drop(self, branch: _Branch) -> None:
        """It goes, and by and by those under it whom nobody else vouches for."""
        for kid in list(branch.kids.values()):
            self._loosen(kid)
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

    def _reckon(self, branch: _Branch, weight: int, free: int) -> None:
        """It weighs this now, and so much of it is free."""
        before = branch.burden
        branch.weight, branch.free = weight, free
        self._burden(branch, branch.burden - before)

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
