"""One private group as a node has it: who is in, what is shown of whom, which secret is used.

It watches the `group` feeds of those who may say something, and decides anew when one has changed.
Sans-I/O; `upkeep.py` acts on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...transport.identity import Identity, PeerId
from ..entry import FeedName
from ..feed import Verdict
from ..holding import Watcher
from .facts import GROUP, Charter, Grant, Role, Said, Sealed
from .rule import Order, decide
from .sealing import open_secret
from .secrets import Mark, Secrets

_OF_MEMBERS = ("member", "models", "shards")
"""Kinds of which nothing is shown once their author is out; what it had said otherwise stays."""
_OF_PROVIDERS = ("shards", "claims", "usage")
"""Kinds by which one does something for others, as clients do not: else a client could answer
anybody's jobs."""


class Group(Watcher):
    """Of the node with this identity."""

    def __init__(self, charter: Charter, identity: Identity, secrets: Secrets) -> None:
        self.charter = charter
        self.secrets = secrets
        self.order = Order()
        self.news = 0  # grows with each change of what is said
        self.on_news: Callable[[], None] = lambda: None
        self._identity = identity
        self._said: dict[PeerId, Said] = {}  # of those who may say something, once it was read
        self._decided = -1
        self._newest: Mark | None = None
        self._vain: dict[PeerId, Mark] = {}  # rotations in which there was nothing for this node

    # As a watcher of the replica.

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
        """What it said counts until its feed has come again."""

    # What is said.

    def unread(self) -> list[PeerId]:
        """Those who may say something, and whose feed was not read."""
        wanted = (self.charter.founder, *self.order.speakers())
        return [peer for peer in dict.fromkeys(wanted) if peer not in self._said]

    def read(self, peer: PeerId, facts: dict[str, bytes]) -> None:
        """What the feed of such a one says now."""
        self._vain.pop(peer, None)
        said = self._said[peer] = Said()
        for key, value in facts.items():
            said.change(key, value)
        self.news += 1

    def said(self, peer: PeerId) -> Said:
        """What one of them says."""
        return self._said.get(peer) or Said()

    def decide(self) -> bool:
        """Apply the rule where something has changed; whether anything is different now."""
        if self._decided == self.news:
            return False
        self._decided = self.news
        before, self.order = self.order, decide(self.charter.founder, self._said)
        # Who may say nothing any more is read anew when it may: else an owner that grants and takes
        # back makes as many of these as it likes.
        speakers = frozenset(self.order.speakers())
        self._said = {peer: said for peer, said in self._said.items() if peer in speakers}
        self._newest = max((mark for mark, _ in self._rotations()), default=None)
        self._open()
        return before != self.order

    def granting(self, peer: PeerId, grant: Grant) -> Order:
        """The group with that grant by this node, and with no revocation of the peer by it."""
        own = self._identity.peer
        said = self.said(own)
        revoked = {other: each for other, each in said.revoked.items() if other != peer}
        said = replace(said, grants=said.grants | {peer: grant}, revoked=revoked)
        return decide(self.charter.founder, self._said | {own: said})

    def would_place(self, peer: PeerId, grant: Grant) -> bool:
        """Whether `granting` it gives the peer that role, and takes nobody's place where it is a
        higher one, but of whom the revoked let in: places are bounded."""
        before, after = self.order.standings, self.granting(peer, grant).standings
        if peer not in after or after[peer].role is not grant.role:
            return False
        if peer in before and before[peer].role >= grant.role:
            return True
        kept = (each for each in before if before[each].by not in self.order.revoked)
        return all(each in after and after[each].role >= before[each].role for each in kept)

    # Who is in.

    @property
    def decided(self) -> bool:
        """The rule was applied at least once: before it, nobody can be let in."""
        return self._decided >= 0

    @property
    def young(self) -> bool:
        """This node does not yet see itself in the group: who has a secret counts as a member. A
        founder stands in it by itself, also where it has lost all that it said."""
        own = self._identity.peer
        if own == self.charter.founder:
            return self.said(own).about is None
        return not self.order.knows(own)

    @property
    def role(self) -> Role | None:
        """This node's own."""
        return self.order.role(self._identity.peer)

    def revoked_by(self, peer: PeerId) -> PeerId | None:
        """Who has revoked a peer."""
        found = self.order.revoked.get(peer)
        return None if found is None else found[0]

    def counts(self, peer: PeerId) -> bool:
        """Whether a peer is to be listed as a member."""
        return self.shows(peer, "member")

    def shows(self, author: PeerId, kind: str) -> bool:
        """Whether what an author says counts: the one place where roles do something to views and
        routing. A client's shards, claims and usage do not; of whoever is no member nothing, but
        what a revoked one had said of jobs and usage until it was."""
        role = self.order.role(author)
        if role is not None:
            return role > Role.CLIENT or kind not in _OF_PROVIDERS
        if author == self._identity.peer or self.young:
            return True
        return author in self.order.standings and kind not in _OF_MEMBERS

    # Secrets.

    @property
    def newest(self) -> Mark | None:
        """The secret of the latest rotation by an owner, whether this node knows it or not."""
        return self._newest

    def rotator(self) -> PeerId | None:
        """Whose rotation the newest is."""
        return next((peer for mark, peer in self._rotations() if mark == self._newest), None)

    def parts(self, peer: PeerId, number: int) -> list[Sealed]:
        """What an owner sealed in a rotation."""
        keys = self.said(peer).keys
        return [part for place, part in sorted(keys.items()) if place[0] == number]

    def _rotations(self) -> Iterator[tuple[Mark, PeerId]]:
        """The latest of each owner. Of a revoked one none counts: it knows what it made."""
        for standing in self.order.members():
            keys = self.said(standing.peer).keys if standing.role is Role.OWNER else {}
            if keys:
                number, part = max(keys)
                yield Mark(number, keys[number, part].mark), standing.peer

    def _open(self) -> None:
        """What owners sealed for this node, where it is not known yet."""
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
            vain[peer] = mark  # until its feed says something else
        self._vain = vain
