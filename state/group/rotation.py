"""Rotation of the group's secret by owners, and distribution of the secret to new members."""

from collections.abc import Callable, Iterable, Mapping

from ...transport.host.seam import Host
from ...transport.identity import Identity, PeerId
from .. import defaults
from ..errors import GroupRefused
from . import facts
from .facts import Role, Sealed
from .group import Group, Mark
from .ownfeed import Changes, OwnFeed, say
from .sealing import SECRET_BYTES, boxed, mark_of, seal_secret


class Rotation:
    """The duties of one node as an owner, with respect to secrets.

    `wake` is called when `keep_up` has work.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        group: Group,
        own: OwnFeed,
        wake: Callable[[], None],
    ) -> None:
        self._stale = False  # a new secret was requested
        self._host = host
        self._identity = identity
        self._group = group
        self._own = own
        self._wake = wake
        self._given: tuple[Mark, set[PeerId]] | None = None
        """The latest secret that this run of the node has made or sent to new members, and the
        members that it was sealed for."""

    def ask(self) -> None:
        """Request a new secret. `keep_up` makes it."""
        self._stale = True
        self._wake()

    async def keep_up(self) -> None:
        """Write the facts about secrets that are due.

        Such a fact contains a part of a new secret, or the present secret for new members. Does
        nothing if this node is not an owner. Raises FeedFull if the facts do not fit into this
        node's feed, and GroupRefused if no number is left for a rotation.
        """
        own = self._identity.peer
        if self._group.role is not Role.OWNER or own not in self._boxes():
            return
        if self._given is not None and not self._heard(self._given[0]):
            return  # the previous rotation is not on disk yet
        newest = self._group.newest
        if newest is None:
            await self._rotate(first=next(iter(self._group.secrets.known()), None))
        elif self._stale or self._leaked(newest):
            await self._rotate()
        elif self._group.rotator() == own and newest in self._group.secrets:
            await self._hand_on(newest)

    def _heard(self, mark: Mark) -> bool:
        """Return whether the facts that this run wrote about a secret are in the feed."""
        said = self._group.said(self._identity.peer).keys
        return any(at[0] == mark.number and said[at].mark == mark.mark for at in said)

    def _leaked(self, newest: Mark) -> bool:
        """Return whether a member that this node has revoked was given the newest secret."""
        rotator, own = self._group.rotator(), self._identity.peer
        mine = [peer for peer, (by, _) in self._group.order.revoked.items() if by == own]
        if rotator is None or not mine:
            return False
        parts = self._group.parts(rotator, newest.number)
        return bool(boxed(self._group.charter.ident, newest.number, mine, parts))

    async def _hand_on(self, newest: Mark) -> None:
        """Send the newest secret to the members that it was not sealed for.

        Such members were added after the rotation, perhaps by a member that did not know the secret
        yet.
        """
        own, ident = self._identity.peer, self._group.charter.ident
        parts = self._group.parts(own, newest.number)
        members = self._boxes()
        have = boxed(ident, newest.number, members, parts)
        if self._given is not None and self._given[0] == newest:
            have |= self._given[1]
        lacking = {peer: box for peer, box in members.items() if peer not in have}
        if not lacking:
            return
        numbers = [at[1] for at in self._group.said(own).keys if at[0] == newest.number]
        first = max(numbers, default=-1) + 1
        if first >= defaults.KEY_PARTS:  # members added one at a time have used up the part numbers
            await self._rotate()
            return
        parts = await self._sealed(newest.number, self._group.secrets[newest], lacking)
        say(self._own, _told(newest.number, parts, first))
        self._given = newest, have | lacking.keys()

    async def _rotate(self, first: tuple[int, bytes] | None = None) -> None:
        """Make a new secret, and publish it in this node's feed.

        If `first` is given, publish that secret with its number instead: the founding secret of the
        group, which is in no feed yet.
        """
        number = self.next_number()
        number, secret = first or (number, self._host.entropy(SECRET_BYTES))
        mark, members = Mark(number, mark_of(secret)), self._boxes()
        self._replace(number, await self._sealed(number, secret, members))
        self._group.secrets.add(number, secret)
        self._given = mark, set(members)
        self._stale = False

    def _replace(self, number: int, parts: Iterable[Sealed]) -> None:
        """Replace this node's previous rotation in its feed atomically.

        After a partial rotation, this node would wait for facts that it has already deleted. If it
        had published no other secret in this run, it would even make a new secret four times a
        second, until all nodes have forgotten the older secrets.
        """
        held = [key for key in self._own.keys("group") if key.startswith(facts.KEY)]
        say(self._own, {**dict.fromkeys(held), **_told(number, parts, 0)})

    def next_number(self) -> int:
        """Return the number of the next rotation.

        Raises GroupRefused if all numbers are used up.
        """
        number = (self._group.newest.number if self._group.newest else 0) + 1
        if number > defaults.KEY_NUMBER:
            raise GroupRefused(
                "key-number",
                "the newest key has the highest possible number",
                hint="`shoal group revoke` its owner, so that the key no longer counts",
            )
        return number

    async def _sealed(
        self, number: int, secret: bytes, members: Mapping[PeerId, bytes]
    ) -> list[Sealed]:
        count = -(-len(members) // defaults.KEY_PART_MEMBERS)
        seeds = [self._host.entropy(SECRET_BYTES) for _ in range(count)]
        ident = self._group.charter.ident
        return await self._host.offload(
            lambda: list(seal_secret(ident, number, secret, members, seeds))
        )

    def _boxes(self) -> dict[PeerId, bytes]:
        return {each.peer: each.box for each in self._group.order.members() if each.box}


def _told(number: int, parts: Iterable[Sealed], first: int) -> Changes:
    """Return the facts with the parts of a rotation, which are numbered from `first` on."""
    full = (part for part in parts if part.boxes)
    return {facts.key_key(number, at): facts.key_fact(part) for at, part in enumerate(full, first)}
