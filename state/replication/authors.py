"""Selection of the authors whose feeds this node stores, within one memory budget.

Stored are the feeds of this node, of the members of its group, of peers with a link, and of authors
that stored authors vouch for. All these authors form one tree. Its top-level branches are this
node, each group member, each peer with a link, and one branch for all peers that had a link
recently. Below each author are authors that it vouches for.

When the budget is exceeded, authors are evicted from the heaviest branch, which is chosen at each
level from the top down. Therefore, if k of this node's L links lead to an attacker, a million keys
that the attacker makes up get k/L of the budget. Keys behind a link of a link get no more than the
part of that link's peer. A peer with a link has a free share: only its weight above the share
counts.

Before an author is evicted, it moves to another of its vouchers if there is one with a lighter
branch. When a voucher with thousands of authors is evicted, its authors are moved a few at a time.
No I/O. Authors are identified by their public keys.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from .. import defaults


class AuthorsChange(NamedTuple):
    """Authors whose feeds are stored from now on, and authors whose feeds no longer are."""

    added: tuple[bytes, ...] = ()
    dropped: tuple[bytes, ...] = ()


class _Branch:
    """A node of the tree: an author, or an inner node that stands for no author."""

    __slots__ = ("free", "key", "kids", "load", "parent", "vouchers", "vouches", "weight")

    def __init__(self, key: bytes, weight: int = 0, free: int = 0) -> None:
        self.key = key
        self.parent: _Branch | None = None
        self.kids = _NOBODY  # a dict of its own once it has a child
        self.weight = weight  # bytes
        self.free = free  # bytes of the weight that cause no eviction
        self.load = self.burden  # sum of the burdens of this whole subtree
        self.vouches: tuple[bytes, ...] = ()
        self.vouchers: tuple[_Branch, ...] = ()  # at most VOUCHERS; some may have been evicted

    @property
    def burden(self) -> int:
        """The weight beyond the free share, in bytes."""
        return max(self.weight - self.free, 0)

    @property
    def hangs(self) -> bool:
        """Whether the branch is still in the tree."""
        return self.parent is not None

    def up(self) -> "Iterator[_Branch]":
        """Yield this branch, its parent, and so on up to the root."""
        at: _Branch | None = self
        while at is not None:
            yield at
            at = at.parent


_ALL: Final = 2**63
_NOBODY: Final[dict[bytes, _Branch]] = {}


class Authors:
    """The authors whose feeds one node stores. `own` is the node's public key."""

    def __init__(self, own: bytes, *, budget: int = defaults.FEEDS_BUDGET) -> None:
        """Create the selection, with this node as the only author.

        `budget` is the limit in bytes for all authors together.
        """
        self._budget = budget
        self._top = _Branch(b"")
        self._past = _Branch(b"past")  # authors that had a link, oldest first
        self._hang(self._past, self._top)
        self._loose = _Branch(b"loose")  # authors whose voucher was evicted
        self._hang(self._loose, self._top)
        self._kept: dict[bytes, _Branch] = {}
        self._linked: set[bytes] = set()
        self._group: set[bytes] = set()
        self._total = 0
        self._gone = False  # whether an author was evicted since the last refill
        self._added: dict[bytes, None] = {}
        self._dropped: dict[bytes, None] = {}
        self._own = own
        self.grouped(())

    # Reading.

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> Collection[bytes]:
        return self._kept.keys()

    def vouchers(self, key: bytes) -> int:
        """Return how many stored authors vouch for this one."""
        branch = self._kept.get(key)
        return 0 if branch is None else sum(other.hangs for other in branch.vouchers)

    @property
    def total(self) -> int:
        """The weight of all authors, in bytes."""
        return self._total

    # Changing.

    def linked(self, key: bytes) -> AuthorsChange:
        """Record a new link to this peer. Its feeds are stored from now on."""
        self._linked.add(key)
        self._pin(key)
        return self._changed()

    def unlinked(self, key: bytes) -> AuthorsChange:
        """Record that the link to a peer has ended.

        At most PAST_LINKS authors stay because they had a link. If there are more, those whose link
        ended first move to another voucher, or are evicted.
        """
        if key in self._linked:
            self._linked.remove(key)
            self._unpin(key)
        return self._changed()

    def grouped(self, keys: Iterable[bytes]) -> AuthorsChange:
        """Set the members of this node's group. This node itself always counts as one of them."""
        before, self._group = self._group, {self._own, *keys}
        for key in sorted(self._group - before):
            self._pin(key)
        for key in sorted(before - self._group):
            self._unpin(key)
        return self._changed()

    def vouches(self, key: bytes, names: Iterable[bytes]) -> AuthorsChange:
        """Set the authors that an author vouches for. Names beyond AUTHOR_VOUCHED are ignored."""
        branch = self._kept.get(key)
        if branch is None:
            return AuthorsChange()
        before = branch.vouches
        some = tuple(dict.fromkeys(names))[: defaults.AUTHOR_VOUCHED]
        # Thousands of authors name the same keys, so they share one object for each key.
        branch.vouches = tuple(self._kept[n].key if n in self._kept else n for n in some)
        now = set(branch.vouches)
        for name in before:
            if name not in now and (other := self._kept.get(name)) is not None:
                self._withdraw(branch, other)
        for name in branch.vouches:
            if branch.key in self._kept:
                self._vouch(branch, name)
        return self._changed()

    def weigh(self, key: bytes, size: int) -> AuthorsChange:
        """Set the size in bytes of an author's entries, or of its facts in the views."""
        branch = self._kept.get(key)
        if branch is not None:
            self._total -= branch.weight
            self._reckon(branch, weight_of(size), branch.free)
            self._total += branch.weight
            self._make_room()
        return self._changed()

    def refill(self) -> Iterator[AuthorsChange]:
        """Yield changes that add authors for which there was no space before, if there is now.

        Each step processes a few vouchers. Other changes may be made between two steps.
        """
        if not self._gone or self._total >= defaults.FEEDS_ROOM * self._budget:
            return
        self._gone = False
        for key in sorted(self._linked - self._kept.keys()):
            self._pin(key)
        keys = list(self._kept)
        for start in range(0, len(keys), defaults.REFILLED_AT_ONCE):
            for key in keys[start : start + defaults.REFILLED_AT_ONCE]:
                branch = self._kept.get(key)
                if branch is not None:
                    self._revouch(branch)
            yield self._changed()
            if self._gone:
                return  # the budget is used up again

    def _revouch(self, branch: _Branch) -> None:
        for name in branch.vouches:
            if not self._gone and branch.key in self._kept:
                self._vouch(branch, name)

    @property
    def unsettled(self) -> bool:
        """Whether the latest change has further consequences, so that `settle` must be called."""
        return bool(self._loose.kids) or (self._total > self._budget and self._top.load > 0)

    def settle(self) -> AuthorsChange:
        """Apply the next part of the consequences of earlier changes, and return what changed."""
        return self._changed()

    def _changed(self) -> AuthorsChange:
        """Apply a limited part of the pending consequences.

        Returns the authors that were added and dropped since the last call.
        """
        for _ in range(defaults.SETTLED_AT_ONCE):
            if not self._loose.kids:
                break
            self._rehang(next(iter(self._loose.kids.values())))
        self._make_room()
        change = AuthorsChange(tuple(self._added), tuple(self._dropped))
        if change.added or change.dropped:
            self._added, self._dropped = {}, {}
        return change

    # Authors that need no voucher.

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
        """Move an author that has left the group or lost its link to the branch of past links.

        An author that is still in the group, or still has a link, stays at the top level.
        """
        branch = self._kept.get(key)
        if branch is None:
            return  # the author was evicted because its weight was too large
        self._reckon(branch, branch.weight, self._free_of(key))
        if key not in self._group and key not in self._linked:
            self._unhang(branch)
            self._hang(branch, self._past)
            if len(self._past.kids) > defaults.PAST_LINKS:
                self._rehang(next(iter(self._past.kids.values())))
        self._make_room()

    def _free_of(self, key: bytes) -> int:
        """Return how many bytes of an author's weight do not count towards eviction.

        For a group member that is its whole weight, for a linked peer a share of the budget, and
        for any other author 0.
        """
        if key in self._group:
            return _ALL
        share = max(self._budget // defaults.LINKED_SHARE, defaults.AUTHOR_LEAST)
        return share if key in self._linked else 0

    # Authors that other authors vouch for.

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
        """Move a branch to `_loose`, because the author above it no longer vouches for it or was
        evicted."""
        self._unhang(branch)
        self._hang(branch, self._loose)

    def _rehang(self, branch: _Branch) -> None:
        """Move a branch below another of its vouchers, or evict it if there is no suitable one."""
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

    # Eviction.

    def _make_room(self) -> None:
        """Evict a few authors while the budget is exceeded, or move them to a lighter branch.

        Handles at most SETTLED_AT_ONCE authors. `unsettled` stays True while the budget is
        exceeded.
        """
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
        """Return the author to evict first, or None if all weight is in free shares.

        Of equally heavy branches, the youngest is searched.
        """
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
        """Return another voucher, to which a branch can move to balance the tree, or None.

        Where the paths to the present parent and to that voucher part, the voucher's side must stay
        lighter than the present side even after the move. A branch with children does not move.
        """
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
        """Evict an author. Authors below it move to `_loose`, and are moved or evicted later."""
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
        """Set the weight of a branch and the free part of the weight, in bytes."""
        before = branch.burden
        branch.weight, branch.free = weight, free
        self._burden(branch, branch.burden - before)

    @staticmethod
    def _burden(branch: _Branch, more: int) -> None:
        for each in branch.up():
            each.load += more


def weight_of(size: int) -> int:
    """Return the weight in bytes of an author whose entries, or facts in the views, take `size`
    bytes."""
    return max(defaults.AUTHOR_WEIGHT + size, defaults.AUTHOR_LEAST)


def _depth(branch: _Branch) -> int:
    """Return the number of levels between a branch and the root of the tree."""
    return sum(1 for _ in branch.up()) - 1


def _root_load(branch: _Branch) -> int:
    """Return the load of the top-level branch that contains this branch."""
    load = 0
    for each in branch.up():
        if each.parent is not None:
            load = each.load
    return load
