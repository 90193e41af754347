"""Brief links for DHT requests: dialled on demand, closed when idle, and limited in number."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import trio

from ...transport.address import Address
from ...transport.errors import DialFailed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Handler
from ...transport.link.link import Link
from ...transport.networks import Nearness, nearness_of
from ...transport.rates import Rate, Rates
from .. import defaults
from ..records.contact import Contact
from .slots import FairSlots

Connect = Callable[[PeerId, Sequence[Address]], Awaitable[Link]]
"""Opens a link for a few requests (`Endpoint.ask`, `Dialer.ask`). Raises DialFailed."""


class Switchboard(Protocol):
    """The part of an `Endpoint` that the DHT uses."""

    peer: PeerId

    def handle(self, method: str, handler: Handler) -> None: ...
    def link(self, peer: PeerId) -> Link | None: ...
    def links(self) -> list[Link]: ...


class BriefLinks:
    """Pool of brief links.

    A link that another part of the node uses or waits for is never closed: a stage in the middle of
    a chain may send its gateway nothing for minutes.
    """

    def __init__(self, host: Host, endpoint: Switchboard, connect: Connect) -> None:
        self._host = host
        self._endpoint = endpoint
        self.connect = connect
        # link -> (`Link.turns` at the last sweep, time of its last use)
        self._used: dict[Link, tuple[int, float]] = {}
        self._dials = FairSlots(defaults.BRIEF_DIALS)
        # Peers whose dial failed: when the back-off ends, and the addresses that were tried.
        self.resting: dict[PeerId, tuple[float, frozenset[Address]]] = {}
        self._failed_dials = Rates(Rate(*defaults.FAILED_DIALS))  # failed dials, per public host

    def linked(self, peer: PeerId) -> bool:
        """Return whether there is a working link to the peer, so that a request needs no dial."""
        link = self._endpoint.link(peer)
        return link is not None and link.connected and not link.quiet

    def count(self) -> int:
        """Return the number of open brief links."""
        return len(self._brief())

    async def to(
        self, contact: Contact, sure: Collection[Address] = (), by: Sequence[str] = ("",)
    ) -> Link:
        """Return a link to a contact. If there is none, dial its addresses.

        `sure` are addresses at which the contact has answered before. Failed dials to any other
        public host are rate-limited, because an attacker may name the address of a victim to make
        many nodes dial it. `by` are the networks of the peers that named the contact. These
        networks share the dial slots fairly.

        Raises DialFailed if no address answers, or if the last dial failed a moment ago. The code
        is `crowded` if the dial lost its slot to another network.
        """
        link = self._endpoint.link(contact.peer)
        if link is not None and link.connected:
            return link
        now = self._host.now()
        until, tried = self.resting.get(contact.peer, (now, frozenset()))
        if until > now and tried.issuperset(contact.addresses):
            raise DialFailed("unreachable", f"`{contact.peer}` did not answer a moment ago")
        dialled = await self._dials.use(by, partial(self._dial, contact, sure))
        if dialled is None:
            raise DialFailed("crowded", f"the dial of `{contact.peer}` lost its slot to another")
        self.resting.pop(contact.peer, None)
        self.sweep()
        return dialled

    async def _dial(self, contact: Contact, sure: Collection[Address]) -> Link:
        """Dial the addresses of a contact, except those at hosts with too many failed dials."""
        guessed = [each for each in contact.addresses if each not in sure and _is_far(each)]
        hosts = {each.host for each in guessed}
        refused = {host for host in hosts if not self._failed_dials.take(host, self._host.now())}
        left = [
            each for each in contact.addresses if each not in guessed or each.host not in refused
        ]
        if contact.addresses and not left:
            raise DialFailed(
                "unreachable", f"too many dials to the hosts of `{contact.peer}` have failed"
            )
        try:
            link = await self.connect(contact.peer, left)
        except DialFailed:
            self._rest(contact)
            raise
        for host in sorted(hosts - refused):
            self._failed_dials.give(host, self._host.now())
        return link

    def clear_backoffs(self) -> None:
        """Clear all back-offs and failed dials, because this node's network may have changed."""
        self.resting.clear()
        self._failed_dials = Rates(Rate(*defaults.FAILED_DIALS))

    def _rest(self, contact: Contact) -> None:
        """Start the back-off of a contact whose dial failed."""
        self.resting.pop(contact.peer, None)
        until = self._host.now() + defaults.BRIEF_REST
        self.resting[contact.peer] = until, frozenset(contact.addresses)
        while len(self.resting) > defaults.BRIEF_RESTING:
            del self.resting[next(iter(self.resting))]

    async def run(self) -> None:
        """Close idle brief links until cancelled."""
        while True:
            linked = bool(self._endpoint.links())  # others may dial brief links as well
            await trio.sleep(defaults.BRIEF_LOOK if linked else defaults.BRIEF_IDLE)
            self.sweep()

    def sweep(self) -> None:
        """Close the brief links that were idle for `BRIEF_IDLE` seconds.

        If there are more than `BRIEF_LINKS`, those that were idle for longest are closed as well.
        """
        now = self._host.now()
        idle: list[tuple[float, Link]] = []
        brief = self._brief()
        self._used = {link: self._used.get(link, (-1, now)) for link in brief}
        for link in brief:
            turns, at = self._used[link]
            if link.turns != turns or link.attended:
                self._used[link] = (link.turns, now)
            else:
                idle.append((at, link))
        idle.sort(key=lambda item: item[0])
        spare = len(brief) - defaults.BRIEF_LINKS
        for number, (at, link) in enumerate(idle):
            if number < spare or now - at >= defaults.BRIEF_IDLE:
                link.close("idle")

    def _brief(self) -> list[Link]:
        """Return the open links that only the DHT uses."""
        return [link for link in self._endpoint.links() if link.brief]


def _is_far(address: Address) -> bool:
    """Return whether an address is on the internet."""
    return nearness_of(address.host) is Nearness.PUBLIC
