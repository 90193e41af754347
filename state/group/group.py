"""One node's view of a private group: its members, the facts shown of each, and its secrets.

It watches the `group` feeds of owners and operators, and decides again when one has changed. No
I/O; `upkeep.py` acts on the decisions.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...transport.identity import Identity, PeerId
from ..feeds.entry import FeedName
from ..feeds.feed import Verdict
from ..replication.holding import Watcher
from .facts import GROUP, Charter, Grant, Role, Said, Sealed
from .rule import Order, decide
from .sealing import open_secret
from .secrets import Mark, Secrets

_OF_MEMBERS = ("member", "models", "shards")
"""Kinds that are hidden once their author is revoked. Its earlier facts of other kinds stay."""
_OF_PROVIDERS = ("shards", "claims", "usage")
"""Kinds of providers. They do not count from clients, which could otherwise answer any member's
jobs."""


class Group(Watcher):
    """The group as the node with this identity sees it."""

    def __init__(self, charter: Charter, identity: Identity, secrets: Secrets) -> None:
        self.charter = charter
        self.secrets = secrets
        self.order = Order()
        self.news = 0  # grows with each change of the facts
        self.on_news: Callable[[], None] = lambda: None
        self._identity = identity
        self._said: dict[PeerId, Said] = {}  # of owners and operators whose feeds were read
        self._decided = -1
        self._newest: Mark | None = None
        self._vain: dict[PeerId, Mark] = {}  # rotations that have no box for this node

    # The `Watcher` interface.

    def changed(self, name: FeedName, verdict: Verdict) -> None:
        if (name.kind, name.part) != GROUP or name.author not in self._said:
            return
        self._vain.pop(name.author, None)
        if verdict.fresh:
            self._said[name.author] = Said()
        for key, value in verdict.changed.items():
            self._said[name.author].change(key, value)
        self.news += 1
        self.on_news()

    def dropped(self, author: PeerId) -> None:
        """Do nothing: the author's facts count until its feed has arrived again."""

    # Facts and decisions.

    def unread(self) -> list[PeerId]:
        """Return the founder, owners and operators whose feeds were not read yet."""
        wanted = (self.charter.founder, *self.order.speakers())
        return [peer for peer in dict.fromkeys(wanted) if peer not in self._said]

    def read(self, peer: PeerId, facts: dict[str, bytes]) -> None:
        """Set the facts of the feed of one of them."""
        self._vain.pop(peer, None)
        said = self._said[peer] = Said()
        for key, value in facts.items():
            said.change(key, value)
        self.news += 1

    def said(self, peer: PeerId) -> Said:
        """Return the facts of one of them."""
        return self._said.get(peer) or Said()

    def decide(self) -> bool:
        """Apply the rule if a fact has changed. Return whether the order has changed."""
        if self._decided == self.news:
            return False
        self._decided = self.news
        before, self.order = self.order, decide(self.charter.founder, self._said)
        # Forget peers that no longer count; they are read again if they do. Otherwise an owner that
        # grants and revokes roles could fill this table.
        speakers = frozenset(self.order.speakers())
        self._said = {peer: said for peer, said in self._said.items() if peer in speakers}
        self._newest = max((mark for mark, _ in self._rotations()), default=None)
        self._open()
        return before != self.order

    def granting(self, peer: PeerId, grant: Grant) -> Order:
        """Return the group with this grant added by this node, and without its revocation of the
        peer."""
        own = self._identity.peer
        said = self.said(own)
        revoked = {other: each for other, each in said.revoked.items() if other != peer}
        said = replace(said, grants=said.grants | {peer: grant}, revoked=revoked)
        return decide(self.charter.founder, self._said | {own: said})

    def would_place(self, peer: PeerId, grant: Grant) -> bool:
        """Whether the grant would take effect: the number of members is limited.

        A grant of a higher role must not displace any other member, except those that revoked
        members admitted.
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
        """Whether the rule was applied at least once. Before that, no peer can be admitted."""
        return self._decided >= 0

    @property
    def young(self) -> bool:
        """Whether this node does not find itself in the group yet, so that a secret is enough.

        A founder always finds itself, so it is young until its fact `about` is known.
        """
        own = self._identity.peer
        if own == self.charter.founder:
            return self.said(own).about is None
        return not self.order.knows(own)

    @property
    def role(self) -> Role | None:
        """Return this node's own role, or None."""
        return self.order.role(self._identity.peer)

    def revoked_by(self, peer: PeerId) -> PeerId | None:
        """Return the owner that has revoked a peer, or None."""
        found = self.order.revoked.get(peer)
        return None if found is None else found[0]

    def counts(self, peer: PeerId) -> bool:
        """Whether a peer counts as a member."""
        return self.shows(peer, "member")

    def shows(self, author: PeerId, kind: str) -> bool:
        """Whether an author's facts of a kind count. Roles affect views and routing only here.

        Shards, claims and usage of clients do not count. Nothing counts of a peer that is not a
        member, except the jobs, claims and usage that a revoked member wrote before its
        revocation.
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
        """Return the mark of the latest rotation by an owner, even if its secret is unknown
        here."""
        return self._newest

    def rotator(self) -> PeerId | None:
        """Return the owner that made the newest rotation."""
        return next((peer for mark, peer in self._rotations() if mark == self._newest), None)

    def parts(self, peer: PeerId, number: int) -> list[Sealed]:
        """Return the parts of an owner's rotation."""
        keys = self.said(peer).keys
        return [part for place, part in sorted(keys.items()) if place[0] == number]

    def _rotations(self) -> Iterator[tuple[Mark, PeerId]]:
        """Yield the latest rotation of each owner, but not of revoked ones, which know their
        secrets."""
        for standing in self.order.members():
            keys = self.said(standing.peer).keys if standing.role is Role.OWNER else {}
            if keys:
                number, part = max(keys)
                yield Mark(number, keys[number, part].mark), standing.peer

    def _open(self) -> None:
        """Open the unknown secrets that owners sealed for this node."""
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
            vain[peer] = mark  # until its feed changes
        self._vain = vain
