"""Dials members while this node has too few links."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf

import trio

from ...transport.address import Address
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import DialFailed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.rates import Rate, RateLimiter
from .. import defaults
from .liveness import Liveness
from .roster import Roster

Connect = Callable[[PeerId, Sequence[Address]], Awaitable[object]]
"""Makes a link to a peer that may have these addresses. Raises DialFailed if that fails."""


class MemberDialer:
    """Dialer of the members in `roster`.

    `most_links` is the number of links up to which members are dialled. None means as many as this
    node needs. `connect` makes a link to a member. By default, the member's addresses are dialled
    one after the other.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        roster: Roster,
        liveness: Liveness,
        most_links: int | None,
        connect: Connect | None,
    ) -> None:
        self.most_links = most_links
        """Most links to members, or None for the default number."""
        self._host = host
        self._endpoint = endpoint
        self._roster = roster
        self._liveness = liveness
        self._connect = connect or self._dial_each
        self._dialling = 0
        self._next_dial = -inf  # earliest dial beyond FIRST_LINKS
        self._regains = RateLimiter(Rate(*defaults.REGAINED_LINKS), 0.0)

    def start_due(self, nursery: trio.Nursery, wake: Callable[[], None]) -> float:
        """Dial the members that are due. Return the seconds until the next dial may be due.

        `wake` is called when a dial has ended.
        """
        now = self._host.now()
        room, lost = self._room(now), self._room_for_lost(now)
        for peer, addresses in self._roster.next_dials(now, room, lost):
            regains = self._lacking <= 0 and self._roster.has_lost(peer) and self._regains.take(now)
            self._dialling += 1
            self._next_dial = now + self._jitter(defaults.LINK_PAUSE)
            self._endpoint.guard.start(nursery, peer, self._dial, peer, addresses, regains, wake)
        wait = defaults.MEMBERS_LOOK
        if self._dialling < defaults.DIALS:
            regained = self._lacking > 0 or self._regains.has(now)
            paced = -inf if regained else self._regains.due
            wait = max(self._roster.next_due(lost=True), paced) - now
            if self._at_hand < self._wanted(now):
                first = self._at_hand < self._first
                paced = max(self._roster.next_due(), -inf if first else self._next_dial)
                wait = min(wait, paced - now)
        return wait

    @property
    def _at_hand(self) -> int:
        """The number of live links and of dials under way.

        Quiet links do not count, because they need replacements.
        """
        return len(self._roster.live) + self._dialling

    @property
    def _first(self) -> int:
        """The number of links up to which members are dialled at once.

        While many nodes join together, the few that are known with an address would get a link from
        each of the others. So the third link of a node in a large swarm comes later, when the node
        knows more members.
        """
        few = len(self._roster) <= defaults.FEW_MEMBERS
        return defaults.FIRST_LINKS if few else defaults.FIRST_LINKS_OF_MANY

    @property
    def _lacking(self) -> int:
        """The number of links that this node lacks, apart from those for members without a witness.

        The number is negative if there are more links.
        """
        wanted = defaults.MEMBER_LINKS if self.most_links is None else self.most_links
        return wanted - self._at_hand

    def _room_for_lost(self, now: float) -> int:
        """Return how many members that have lost their link to dial now.

        After a partition, each half has replaced its lost links. If each node dialled all the
        members that it has lost, it would have half as many links again from then on. A few links
        of each node join the halves.
        """
        if self.most_links == 0:  # a node with this setting dials no members
            return 0
        most = min(defaults.LOST_LINKS - self._at_hand, defaults.DIALS - self._dialling)
        return min(most, max(self._lacking, 0) + int(self._regains.level(now)))

    def _wanted(self, now: float) -> int:
        """Return the number of links up to which members are dialled.

        A few links for each node keep a swarm connected and spread news. A node of a larger swarm
        gets more, because it sees only members that its peers have links to. If the owner has set a
        number, that number is returned.
        """
        if self.most_links is not None:
            return self.most_links
        return defaults.MORE_LINKS if self._liveness.has_unseen(now) else defaults.MEMBER_LINKS

    def _room(self, now: float) -> int:
        """Return how many members to dial now: the first few all at once, later ones one by one."""
        links, first = self._at_hand, self._first
        if self.most_links is not None:
            first = min(first, self.most_links)
        if links >= first:
            return int(now >= self._next_dial and links < self._wanted(now))
        return min(first - links, defaults.DIALS - self._dialling)

    async def _dial(
        self, peer: PeerId, addresses: Sequence[Address], regains: bool, wake: Callable[[], None]
    ) -> None:
        try:
            with suppress(DialFailed):
                await self._connect(peer, addresses)
        finally:
            self._dialling -= 1
            if regains and peer not in self._roster.live:
                self._regains.give(self._host.now())
            self._roster.dialled(peer, self._host.now(), self._jitter)
            wake()

    async def _dial_each(self, peer: PeerId, addresses: Sequence[Address]) -> None:
        for address in addresses:
            with suppress(DialFailed):
                await self._endpoint.dial(address, timeout=defaults.DIAL_TIMEOUT)
                return

    def _jitter(self, seconds: float) -> float:
        """Return `seconds` multiplied by a random factor from 0.75 to 1.25, so that nodes do not
        all dial at once."""
        return seconds * (0.75 + int.from_bytes(self._host.entropy(2)) / 2**17)
