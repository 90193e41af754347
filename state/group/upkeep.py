"""What a node does for its group, and on its behalf: the trio shell of `group.py`.

It applies each new decision to the feeds, the links and the views, and keeps up what this node's
role asks for: the founder says what the group is, an owner hands new secrets to the members.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Any, Protocol

import trio

from ...transport.endpoint import Endpoint
from ...transport.hello import INVITATION
from ...transport.host import Host
from ...transport.identity import Identity, PeerId, public_key_of
from ...transport.link import Link
from .. import defaults
from ..digest import Plot
from ..entry import FORKED, Head
from ..errors import FeedFull, GroupRefused, StateError, StoreRefused
from ..kinds import all_parts
from ..replication import Replication
from . import facts
from .admission import NOT_A_MEMBER, REVOKED
from .facts import GROUP, Grant, Role, Said, Sealed
from .group import Group
from .rule import Order
from .sealing import SECRET_BYTES, box_of, boxed, mark_of, seal_secret
from .secrets import Mark

Changes = Mapping[str, Mapping[str, Any] | None]
"""Facts by their keys; None: that one goes."""


class Feed(Protocol):
    """This node's own `group` feed."""

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        """Raises FeedFull."""
        ...

    def keys(self, kind: str) -> Collection[str]: ...

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None: ...


class Upkeep:
    """Of one node and its group. `on_change` are called after each decision with the one before."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        identity: Identity,
        group: Group,
        replication: Replication,
        own: Feed,
    ) -> None:
        self.group = group
        self.on_change: list[Callable[[Order], None]] = []
        self.trouble: StateError | None = None
        """Why this node cannot say what it has to say to its group."""
        self._host = host
        self._endpoint = endpoint
        self._identity = identity
        self._replication = replication
        self._replica = replication.replica
        self._own = own
        self._news = trio.Event()
        self._decided = trio.Event()
        self._given: tuple[Mark, set[PeerId]] | None = None
        """The latest secret that this run made or handed on, and to whom."""
        self._stale = False  # somebody wants another secret
        self.held = False
        """What a founder had said may be with others: it says nothing new before one was asked."""
        replication.exchange.on_reported.append(lambda peer: self._release())
        self._strangers: dict[PeerId, float] = {}  # with a link, since when
        self._gained_at = -inf  # when this node began to keep more kinds than before
        self._replica.interest.on_gained.append(lambda plots: self._gained())
        group.on_news = self.wake

    def _release(self) -> None:
        self.held = False
        self.wake()

    def _gained(self) -> None:
        self._gained_at = self._host.now()

    def wake(self) -> None:
        """There may be something to do."""
        self._news.set()

    # Deciding.

    async def more(self) -> Collection[bytes]:
        """Whose feeds are to be kept besides those that are, as the stored feeds have it."""
        before = set(self._replica.authors.keys())
        await self.settle()
        return set(self._replica.authors.keys()) - before

    async def settle(self) -> None:
        """Decide, until what is decided is what the feeds say when they end where it says.

        As taking in: one caller at a time.
        """
        group = self.group
        while True:
            for peer in group.unread():
                group.read(peer, await self._replica.facts(public_key_of(peer), GROUP))
            before = group.order
            if not group.decide():
                return
            await self._replica.grouped(group.order.speakers())
            await self._replica.cut(group.order.ends())
            for callback in self.on_change:
                callback(before)

    async def decided(self) -> None:
        """Until this node has looked again at what is said."""
        await self._decided.wait()

    async def run(self) -> None:
        """Until cancelled."""
        self._endpoint.on_link(lambda link: self.wake())
        self.wake()
        while True:
            with trio.move_on_after(defaults.GROUP_LOOK):
                await self._news.wait()
            self._news = trio.Event()
            try:
                async with self._replication.turn():
                    await self.settle()
            except (StoreRefused, trio.ClosedResourceError):
                await trio.sleep(defaults.REFUSED_PAUSE)
                continue
            self._decided.set()
            self._decided = trio.Event()
            self._part()
            try:
                await self._do_duties()
            except (FeedFull, GroupRefused) as error:
                self.trouble = error
            else:
                self.trouble = None
            self._replication.wake()
            await trio.sleep(defaults.GROUP_PAUSE)

    def _part(self) -> None:
        """From who is revoked at once, from other strangers after a while: they may only be new.
        Whom an invitation let in stays, though it never asks to be a member, as a browser does."""
        now, strangers = self._host.now(), dict[PeerId, float]()
        for link in self._endpoint.links():
            by = self.group.revoked_by(link.peer)
            if by is not None:
                link.close(REVOKED, f"revoked by {by}")
            elif not self.group.young and self._is_stranger(link):
                since = strangers[link.peer] = self._strangers.get(link.peer, now)
                if now - since > defaults.STRANGER_S:
                    link.close(NOT_A_MEMBER)
        self._strangers = strangers

    def _is_stranger(self, link: Link) -> bool:
        invited = link.status.admitted.kind == INVITATION
        return not invited and self.group.order.role(link.peer) is None

    # What this node owes the group.

    async def _do_duties(self) -> None:
        group, own = self.group, self._identity.peer
        if own == group.charter.founder:
            if self.held and group.young:
                raise GroupRefused(
                    "nothing-left",
                    "what this node has said of its group is not on its disk any more",
                    hint="let it run until another member is there, which gives it back",
                )
            box = box_of(self._identity)
            self._own.set("group", facts.ABOUT, facts.about_fact("", group.charter.nonce, box))
        if group.role is not Role.OWNER or own not in self._boxes():
            return
        if self._given is not None and not self._heard(self._given[0]):
            return  # it is on its way to the disk
        newest = group.newest
        if newest is None:
            await self._rotate(first=next(iter(group.secrets.known()), None))
        elif self._stale or self._leaked(newest):
            await self._rotate()
        elif group.rotator() == own and newest in group.secrets:
            await self._hand_on(newest)

    def _heard(self, mark: Mark) -> bool:
        """Whether what this run said of a secret is in the feed."""
        said = self.group.said(self._identity.peer).keys
        return any(at[0] == mark.number and said[at].mark == mark.mark for at in said)

    def _leaked(self, newest: Mark) -> bool:
        """Whether somebody whom this node has revoked was handed the newest secret."""
        rotator, own = self.group.rotator(), self._identity.peer
        mine = [peer for peer, (by, _) in self.group.order.revoked.items() if by == own]
        if rotator is None or not mine:
            return False
        parts = self.group.parts(rotator, newest.number)
        return bool(boxed(self.group.charter.ident, newest.number, mine, parts))

    async def _hand_on(self, newest: Mark) -> None:
        """To members who are new since the rotation: who let them in may not have known it."""
        own, ident = self._identity.peer, self.group.charter.ident
        parts = self.group.parts(own, newest.number)
        members = self._boxes()
        have = boxed(ident, newest.number, members, parts)
        if self._given is not None and self._given[0] == newest:
            have |= self._given[1]
        lacking = {peer: box for peer, box in members.items() if peer not in have}
        if not lacking:
            return
        numbers = [at[1] for at in self.group.said(own).keys if at[0] == newest.number]
        first = max(numbers, default=-1) + 1
        if first >= defaults.KEY_PARTS:  # one by one they have filled it: all of them anew
            await self._rotate()
            return
        parts = await self._sealed(newest.number, self.group.secrets[newest], lacking)
        for key, value in _told(newest.number, parts, first).items():
            self._own.set("group", key, value)
        self._given = newest, have | lacking.keys()

    async def _rotate(self, first: tuple[int, bytes] | None = None) -> None:
        """`first`: the secret that the group was founded with, which nobody has said yet."""
        number = self._next_number()
        number, secret = first or (number, self._host.entropy(SECRET_BYTES))
        mark, members = Mark(number, mark_of(secret)), self._boxes()
        self._replace(number, await self._sealed(number, secret, members))
        self.group.secrets.add(number, secret)
        self._given = mark, set(members)
        self._stale = False

    def _replace(self, number: int, parts: Iterable[Sealed]) -> None:
        """All of a rotation in place of the one before, or none of it. With a part of it said this
        node would wait for ever to hear what it has taken back; or, where it has said nothing else
        in this run, make the next at once, four a second, until all older secrets are forgotten."""
        held = [key for key in self._own.keys("group") if key.startswith(facts.KEY)]
        self._say({**dict.fromkeys(held), **_told(number, parts, 0)})

    def _next_number(self) -> int:
        number = (self.group.newest.number if self.group.newest else 0) + 1
        if number > defaults.KEY_NUMBER:
            raise GroupRefused(
                "key-number",
                "the newest key has the highest number that there is",
                hint="`shoal group revoke` its owner: it is the newest no more then",
            )
        return number

    async def _sealed(
        self, number: int, secret: bytes, members: Mapping[PeerId, bytes]
    ) -> list[Sealed]:
        count = -(-len(members) // defaults.KEY_PART_MEMBERS)
        seeds = [self._host.entropy(SECRET_BYTES) for _ in range(count)]
        ident = self.group.charter.ident
        return await self._host.offload(
            lambda: list(seal_secret(ident, number, secret, members, seeds))
        )

    def _boxes(self) -> dict[PeerId, bytes]:
        return {each.peer: each.box for each in self.group.order.members() if each.box}

    def _say(self, changes: Changes) -> None:
        """All of these facts, or none of them. Raises FeedFull."""
        before = {key: self._own.get("group", key) for key in changes}
        try:
            self._put(changes)
        except FeedFull:
            self._put(before)
            raise

    def _put(self, changes: Changes) -> None:
        """What goes makes room for the rest."""
        for key in changes:
            self._own.set("group", key, None)
        for key, value in changes.items():
            if value is not None:
                self._own.set("group", key, value)

    # What people ask of it.

    async def admit(self, peer: PeerId, role: Role, box: bytes) -> None:
        """Let a peer be a member, in this role at least; on disk when it returns.

        Raises GroupRefused, FeedFull.
        """
        if self.group.revoked_by(peer) is not None:
            raise GroupRefused("revoked", f"the group has revoked `{peer}`")
        held = self.group.order.role(peer)
        if held is None or held < role:
            await self._grant(peer, Grant(role, box, self._wall_ms()))

    async def change_role(self, peer: PeerId, role: Role) -> None:
        """Let a member have exactly this role, also one whom this node had revoked.

        Raises GroupRefused, FeedFull.
        """
        self._require_owner("change roles")
        if peer == self.group.charter.founder:
            if role is Role.OWNER:
                return
            words, hint = _founder(peer)
            raise GroupRefused("founder", words, hint=hint)
        standing = self.group.order.standings.get(peer)
        if standing is None:
            raise GroupRefused(
                "no-member", f"`{peer}` is no member", hint="`shoal group` lists the members"
            )
        grant = Grant(role, standing.box, self._wall_ms())
        others = self.group.granting(peer, grant).revoked
        if peer in others:
            raise GroupRefused(
                "revoked",
                f"`{peer}` is revoked by `{others[peer][0]}`",
                hint="only that owner takes it back",
            )
        granters = [other for other in self._granters(peer, role) if other != self._identity.peer]
        if granters:
            raise GroupRefused(
                "granted-by-others",
                f"`{peer}` has a higher role by the grant of `{granters[0]}`",
                hint="ask that one to change it, or revoke it",
            )
        await self._grant(peer, grant)

    def _granters(self, peer: PeerId, above: Role) -> Iterable[PeerId]:
        """Members whose grants give a peer more than that."""
        owners = (each for each in self.group.order.standings.values() if each.role is Role.OWNER)
        return (
            each.peer
            for each in owners
            if (grant := self.group.said(each.peer).grants.get(peer)) and grant.role > above
        )

    async def _grant(self, peer: PeerId, grant: Grant) -> None:
        """With it this node's own revocation of the peer goes, where there is one."""
        own, role = self.group.role, grant.role
        if own is None or not (own is Role.OWNER or (own is Role.OPERATOR and role is Role.CLIENT)):
            raise self.not_allowed(f"let {role.word}s in")
        said = self.group.said(self._identity.peer)
        if own is Role.OPERATOR and len(said.grants) >= defaults.OPERATOR_CLIENTS:
            raise GroupRefused(
                "too-many-clients",
                f"an operator lets {defaults.OPERATOR_CLIENTS} clients in, and this one has",
                hint=f"ask one of: {self.owners()}",
            )
        if not self.group.would_place(peer, grant):
            most = f"{defaults.GROUP_OWNERS} owners and {defaults.GROUP_MEMBERS} members"
            raise GroupRefused(
                "group-full",
                f"a group has {most} at most, the revoked among them",
                hint="`shoal group role PEER operator` frees the place of an owner",
            )
        fact = facts.grant_fact(role, grant.box, grant.since)
        self._say({facts.grant_key(peer): fact, facts.revocation_key(peer): None})
        await self._until(lambda: self.group.order.role(peer) == role)

    async def revoke(self, peer: PeerId) -> None:
        """A peer is out, and what it says from now on counts nowhere; then the secret is another.

        Raises GroupRefused, FeedFull.
        """
        self._require_owner("revoke")
        order = list(self.group.order.standings)
        own = self._identity.peer
        if peer in order and order.index(peer) <= order.index(own):
            raise self._senior(peer)
        if peer not in order:
            raise GroupRefused(
                "no-member", f"`{peer}` is no member", hint="`shoal group` lists the members"
            )
        fact = facts.revocation_fact(self._ends_now(peer), self._wall_ms())
        self._own.set("group", facts.revocation_key(peer), fact)
        await self._until(lambda: self.group.revoked_by(peer) is not None)
        self._stale = True
        self.wake()

    def _senior(self, peer: PeerId) -> GroupRefused:
        """Why this node cannot revoke one that stands before it, or itself."""
        own, founder = self._identity.peer, self.group.charter.founder
        code, message = "senior", f"`{peer}` stands before this node in the group"
        if peer == own:
            code, message = "self", "an owner cannot revoke itself"
        if peer == founder:
            words, hint = _founder(peer)
            return GroupRefused(code, message if peer == own else words, hint=hint)
        owners = [each.peer for each in self.group.order.members() if each.role is Role.OWNER]
        return GroupRefused(
            code, message, hint=f"ask one of: {_listed(owners[: owners.index(peer)])}"
        )

    def _ends_now(self, peer: PeerId) -> Mapping[Plot, Head]:
        """The last entry of each of its feeds; of one who is revoked those of its revocation, for
        what leads there may still be on its way. Raises GroupRefused."""
        revoked = self.group.order.revoked.get(peer)
        if revoked is not None:
            return revoked[1].ends
        key = public_key_of(peer)
        if self._lacks(peer, key):
            raise GroupRefused(
                "not-ready",
                f"not all that `{peer}` has said is here yet, and the rest would count nowhere",
                hint=f"in a moment again, beside members who have it: `shoal group revoke {peer}`",
            )
        heads = ((plot, self._replica.head(key, plot)) for plot in all_parts())
        return {plot: head for plot, head in heads if head is not None and head != FORKED}

    def _lacks(self, peer: PeerId, key: bytes) -> bool:
        """Whether there is something of a peer that is still to be fetched. What others tell of it
        plays no part: who is to be revoked could tell of more for ever."""
        replica = self._replica
        if replica.interest.aside() or self._host.now() < self._gained_at + defaults.WRITE_HOLD:
            return True
        # Its feed was lost: what it says counts until that has come again (`Group.dropped`).
        return replica.head(key, GROUP) is None and self.group.said(peer) != Said()

    async def rotate(self) -> Mark:
        """A new secret for all members; on disk when it returns. Raises GroupRefused, FeedFull."""
        self._require_owner("rotate the key")
        self._next_number()
        before = self.group.newest
        self._stale = True
        await self._until(lambda: self.group.newest not in (before, None))
        assert self.group.newest is not None
        return self.group.newest

    def _require_owner(self, what: str) -> None:
        if self.group.role is not Role.OWNER:
            raise self.not_allowed(what)

    def not_allowed(self, what: str) -> GroupRefused:
        """Why this node's place does not let it do something, and whom to ask."""
        own = self._identity.peer
        if self.group.revoked_by(own) is not None:
            message = f"the group has revoked this node: it cannot {what}"
            hint = f"ask an owner for `shoal group role {own} ROLE`: {self.owners()}"
            return GroupRefused("revoked", message, hint=hint)
        message = f"{_words(self.group.role)} cannot {what}"
        return GroupRefused("not-owner", message, hint=f"ask one of: {self.owners()}")

    def owners(self) -> str:
        """Whom to ask for what only owners do."""
        owners = [each.peer for each in self.group.order.members() if each.role is Role.OWNER]
        return _listed(owners)

    async def _until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(defaults.GROUP_PATIENCE):
            while not holds():
                self.wake()
                await self.decided()
            return
        raise GroupRefused(
            "not-written",
            "the change is not on disk yet",
            hint="it will be: `shoal group` shows it then; `shoal status` says what is in the way",
        )

    def _wall_ms(self) -> int:
        return max(0, int(self._host.wall() * 1000))


def _told(number: int, parts: Iterable[Sealed], first: int) -> Changes:
    """The facts that say parts of a rotation, numbered from `first` on."""
    full = (part for part in parts if part.boxes)
    return {facts.key_key(number, at): facts.key_fact(part) for at, part in enumerate(full, first)}


def _founder(peer: PeerId) -> tuple[str, str]:
    """What is in the way of changing a founder's place, and what goes instead."""
    return (
        f"`{peer}` founded the group: it always stays an owner",
        "found a group without it: `shoal node --private --data DIR`",
    )


def _words(role: Role | None) -> str:
    return "who is no member" if role is None else f"{role.word}s"


def _listed(peers: Iterable[PeerId]) -> str:
    some = list(peers)
    more = len(some) - defaults.OWNERS_LISTED
    listed = ", ".join(some[: defaults.OWNERS_LISTED])
    return f"{listed} and {more} more" if more > 0 else listed
