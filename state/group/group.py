"""One node's view of a private group: its members, which of their facts count, its secrets, and
which peers it admits.

The `Group` watches the `group` feeds of owners and operators, and applies the rule again when one
of them has changed. No I/O; `upkeep.py` acts on the decisions.

A peer that proves a group secret must also be a member by this node's own list of members. Only a
new node, which is not in its own list yet, accepts a peer because of the secret alone: it gets the
list from the first peers that it meets. The newest secret is in use. Older ones are still accepted
from peers that do not know it yet. Spec: docs/spec/group.md, Doors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...transport.handshake.hello import INVITATION, SWARM, Invitations, Secret, invited
from ...transport.identity import Identity, PeerId
from .. import defaults
from ..errors import GroupRefused
from ..feeds.entry import FeedName
from ..feeds.feed import EntryVerdict
from .facts import GROUP, Charter, Grant, GroupFacts, Role, Sealed
from .rule import Order, decide
from .sealing import boxed, mark_of, open_secret

NOT_A_MEMBER, REVOKED, NOT_READY = "not-a-member", "revoked", "not-ready"
"""Codes with which peers are refused."""
_OF_MEMBERS = ("member", "models", "shards")
"""Kinds of feeds that are hidden once their author is revoked. In feeds of other kinds, the facts
from before the revocation still count."""
_OF_PROVIDERS = ("shards", "claims", "usage")
"""Kinds of feeds that only providers write. They do not count if a client writes them, because a
client could otherwise publish results of any member's jobs."""


class Mark(NamedTuple):
    """Identifier of a secret: the number of its rotation, and a hash.

    The hash distinguishes secrets of rotations with the same number.
    """

    number: int
    mark: bytes


class Secrets:
    """The secrets that this node knows, at most KEYS_KEPT: the oldest one, and those learnt last.

    The oldest secret has the lowest number; of equal numbers, it is the one learnt first. It is
    normally the founding secret, which all nodes have in common. Owners choose numbers and marks,
    so eviction must not otherwise depend on them. A revoked owner could use high numbers to make
    nodes forget later secrets, or reuse number 1 with a lower mark to make them forget the founding
    secret.
    """

    def __init__(
        self,
        known: Iterable[tuple[int, bytes]] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the collection from `known`: (number, secret) pairs, the one learnt last first.

        `on_change` is called for each secret that is added later.
        """
        self._on_change = on_change
        self._by_mark: dict[Mark, bytes] = {}
        for number, secret in reversed(list(known)):
            self._add(number, secret)

    def __len__(self) -> int:
        return len(self._by_mark)

    def __contains__(self, mark: object) -> bool:
        return mark in self._by_mark

    def __getitem__(self, mark: Mark) -> bytes:
        return self._by_mark[mark]

    def marks(self) -> list[Mark]:
        """Return the marks of all secrets, the highest number first."""
        return sorted(self._by_mark, reverse=True)

    def known(self) -> list[tuple[int, bytes]]:
        """Return all secrets as (number, secret), the one learnt last first.

        They are saved in a file, and handed over to new members.
        """
        return [(mark.number, self._by_mark[mark]) for mark in reversed(self._by_mark)]

    def add(self, number: int, secret: bytes) -> None:
        """Add a secret, and call `on_change` if it was not known.

        If there are more than KEYS_KEPT, the one that was learnt first is forgotten, but never the
        oldest.
        """
        if self._add(number, secret):
            self._on_change()

    def find(self, ident: bytes) -> bytes | None:
        """Return the secret whose mark has this hash, with any number, or None if it is not
        known."""
        return next((self._by_mark[mark] for mark in self._by_mark if mark.mark == ident), None)

    def shown(self, newest: Mark | None) -> list[Mark]:
        """Return the marks of the secrets that this node proves to a peer, best first.

        The list has `newest`, other secrets at growing distances from it, and the oldest secret.
        Two nodes that missed each other's rotations can therefore find a secret that both know.
        """
        marks = self.marks()
        if newest in self._by_mark:
            marks.remove(newest)
            marks.insert(0, newest)
        chosen = {place for place in defaults.KEYS_SHOWN if place < len(marks)}
        if marks:
            chosen.add(marks.index(self._oldest()))
        return [marks[place] for place in sorted(chosen)]

    def _oldest(self) -> Mark:
        return min(self._by_mark, key=lambda mark: mark.number)

    def _add(self, number: int, secret: bytes) -> bool:
        mark = Mark(number, mark_of(secret))
        if mark in self._by_mark:
            return False
        self._by_mark[mark] = secret
        if len(self._by_mark) > defaults.KEYS_KEPT:
            oldest = self._oldest()
            del self._by_mark[next(each for each in self._by_mark if each != oldest)]
        return True


class Group:
    """The group as the node with this identity sees it."""

    def __init__(self, charter: Charter, identity: Identity, secrets: Secrets) -> None:
        self.charter = charter
        self.secrets = secrets
        self.order = Order()
        self.news = 0  # grows with each change of the facts
        self._identity = identity
        # facts of the owners and operators whose feeds were read
        self._said: dict[PeerId, GroupFacts] = {}
        self._decided = -1
        self._newest: Mark | None = None
        self._vain: dict[PeerId, Mark] = {}  # rotations that have no box for this node

    @property
    def own(self) -> PeerId:
        """The peer id of this node."""
        return self._identity.peer

    def changed(self, name: FeedName, verdict: EntryVerdict) -> None:
        """Take note of a change of a feed, as a `Watcher` of the replica does."""
        if (name.kind, name.part) != GROUP or name.author not in self._said:
            return
        self._vain.pop(name.author, None)
        if verdict.fresh:
            self._said[name.author] = GroupFacts()
        for key, value in verdict.changed.items():
            self._said[name.author].change(key, value)
        self.news += 1

    # Facts and decisions.

    def unread(self) -> list[PeerId]:
        """Return the founder, owners and operators whose `group` feeds have not been read yet."""
        wanted = (self.charter.founder, *self.order.speakers())
        return [peer for peer in dict.fromkeys(wanted) if peer not in self._said]

    def read(self, peer: PeerId, facts: dict[str, bytes]) -> None:
        """Set all facts of the `group` feed of the founder, an owner or an operator."""
        self._vain.pop(peer, None)
        said = self._said[peer] = GroupFacts()
        for key, value in facts.items():
            said.change(key, value)
        self.news += 1

    def said(self, peer: PeerId) -> GroupFacts:
        """Return the facts of a peer's `group` feed. Returns no facts if the feed was not read."""
        return self._said.get(peer) or GroupFacts()

    def decide(self) -> bool:
        """Apply the rule if a fact has changed.

        Return whether the members, roles or ends have changed.
        """
        if self._decided == self.news:
            return False
        self._decided = self.news
        before, self.order = self.order, decide(self.charter.founder, self._said)
        # Forget the facts of peers that are no owners or operators any more. They are read again if
        # needed. Otherwise an owner that grants and revokes roles could fill this table.
        speakers = frozenset(self.order.speakers())
        self._said = {peer: said for peer, said in self._said.items() if peer in speakers}
        self._newest = max((mark for mark, _ in self._rotations()), default=None)
        self._open()
        return before != self.order

    def granting(self, peer: PeerId, grant: Grant) -> Order:
        """Return the order of the group as it would be if this node made this grant.

        This node's own revocation of the peer, if any, is ignored.
        """
        own = self._identity.peer
        said = self.said(own)
        revoked = {other: each for other, each in said.revoked.items() if other != peer}
        said = replace(said, grants=said.grants | {peer: grant}, revoked=revoked)
        return decide(self.charter.founder, self._said | {own: said})

    def would_place(self, peer: PeerId, grant: Grant) -> bool:
        """Return whether a grant would take effect, given that the number of members is limited.

        A grant of a higher role must not displace any other member, except members that were
        admitted by revoked ones.
        """
        before, after = self.order.standings, self.granting(peer, grant).standings
        if peer not in after or after[peer].role is not grant.role:
            return False
        if peer in before and before[peer].role >= grant.role:
            return True
        kept = (each for each in before if before[each].by not in self.order.revoked)
        return all(each in after and after[each].role >= before[each].role for each in kept)

    # Members.

    @property
    def decided(self) -> bool:
        """Whether the rule has been applied at least once. Before that, no peer can be admitted."""
        return self._decided >= 0

    @property
    def young(self) -> bool:
        """Whether this node is not in its own list of members yet.

        Such a node accepts any peer that proves a group secret. A founder is always in its own
        list, so it counts as young until its fact `about` is known.
        """
        own = self._identity.peer
        if own == self.charter.founder:
            return self.said(own).about is None
        return not self.order.knows(own)

    @property
    def role(self) -> Role | None:
        """This node's own role, or None if it is not a member."""
        return self.order.role(self._identity.peer)

    def revoked_by(self, peer: PeerId) -> PeerId | None:
        """Return the owner that has revoked a peer, or None if the peer is not revoked."""
        found = self.order.revoked.get(peer)
        return None if found is None else found[0]

    def counts(self, peer: PeerId) -> bool:
        """Return whether a peer counts as a member."""
        return self.shows(peer, "member")

    def shows(self, author: PeerId, kind: str) -> bool:
        """Return whether an author's facts of a kind count.

        All effects of roles on views are decided here.

        Shards, claims and usage of clients do not count. Of a peer that is not a member, nothing
        counts, except the jobs, claims and usage that a revoked member wrote before its revocation.
        While this node is `young`, all facts of non-members count.
        """
        role = self.order.role(author)
        if role is not None:
            return role > Role.CLIENT or kind not in _OF_PROVIDERS
        if author == self._identity.peer or self.young:
            return True
        return author in self.order.standings and kind not in _OF_MEMBERS

    # Secrets.

    @property
    def newest(self) -> Mark | None:
        """The mark of the latest rotation by an owner, or None if there is none.

        This node may not know the secret of that rotation.
        """
        return self._newest

    def rotator(self) -> PeerId | None:
        """Return the owner that made the newest rotation, or None if there is none."""
        return next((peer for mark, peer in self._rotations() if mark == self._newest), None)

    def fresh_secret(self) -> tuple[Mark, bytes]:
        """Return the newest secret, under which data is sealed that only present members may read.

        Raises GroupRefused `not-ready` while this node does not know it, or it was given to a peer
        that is revoked and no owner has replaced it yet.
        """
        newest, rotator = self._newest, self.rotator()
        if newest is None or rotator is None or newest not in self.secrets:
            why = "this node does not know the newest key of its group yet"
        elif boxed(
            self.charter.ident,
            newest.number,
            self.order.revoked,
            self.parts(rotator, newest.number),
        ):
            why = "a revoked peer knows the newest key of the group"
        else:
            return newest, self.secrets[newest]
        hint = "try again in some seconds; if that does not help: `shoal group rotate`"
        raise GroupRefused("not-ready", why, hint=hint)

    def parts(self, peer: PeerId, number: int) -> list[Sealed]:
        """Return the parts of an owner's rotation, sorted by number."""
        keys = self.said(peer).keys
        return [part for place, part in sorted(keys.items()) if place[0] == number]

    def _rotations(self) -> Iterator[tuple[Mark, PeerId]]:
        """Yield (mark of the secret, owner) for the latest rotation of each owner.

        Rotations of revoked owners are left out, because a revoked owner knows its own secrets.
        """
        for standing in self.order.members():
            keys = self.said(standing.peer).keys if standing.role is Role.OWNER else {}
            if keys:
                number, part = max(keys)
                yield Mark(number, keys[number, part].mark), standing.peer

    def _open(self) -> None:
        """Decrypt the secrets that owners sealed for this node, and add those that it does not
        know."""
        vain: dict[PeerId, Mark] = {}
        for mark, peer in self._rotations():
            if mark in self.secrets:
                continue
            if self._vain.get(peer) != mark:
                parts = [part for part in self.parts(peer, mark.number) if part.mark == mark.mark]
                secret = open_secret(self._identity, self.charter.ident, mark.number, parts)
                if secret is not None:
                    self.secrets.add(mark.number, secret)
                    continue
            vain[peer] = mark  # do not try this rotation again before the owner's feed changes
        self._vain = vain


class GroupAdmission:
    """The admission rules of a node in a group (`Admission` of the handshake)."""

    open = False

    def __init__(self, group: Group, invitations: Invitations | None = None) -> None:
        self.swarm = group.charter.ident
        self._group = group
        self._invitations = invitations

    @property
    def secret(self) -> Secret | None:
        """The first secret to prove to a peer: the newest that this node knows, or None if it knows
        none."""
        return next(iter(self._shown()), None)

    @property
    def further(self) -> Sequence[Secret]:
        """Older secrets, to prove to peers that do not know the newest one yet."""
        return self._shown()[1:]

    def find(self, kind: str, ident: bytes) -> Secret | None:
        if kind == SWARM:
            key = self._group.secrets.find(ident)
            return None if key is None else Secret(SWARM, ident, key)
        return invited(self._invitations, kind, ident)

    def used(self, secret: Secret) -> None:
        if secret.kind == INVITATION and self._invitations is not None:
            self._invitations.used(secret.ident)

    def refusal(self, peer: PeerId, kind: str) -> str | None:
        group = self._group
        if not group.decided:
            return NOT_READY
        if group.revoked_by(peer) is not None:
            return REVOKED
        if kind == INVITATION or group.young or group.order.role(peer) is not None:
            return None
        return NOT_A_MEMBER

    def words(self, peer: PeerId, code: str) -> str:
        by = self._group.revoked_by(peer) if code == REVOKED else None
        return "" if by is None else f"revoked by {by}"

    def _shown(self) -> list[Secret]:
        secrets = self._group.secrets
        shown = secrets.shown(self._group.newest)
        return [Secret(SWARM, mark.mark, secrets[mark]) for mark in shown]
