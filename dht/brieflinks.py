"""Links for look-ups: dialled for a few questions, kept while they are used, and only so many."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import trio

from ..transport.address import Address
from ..transport.calls import Handler
from ..transport.errors import DialFailed
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.link import Link
from ..transport.place import Nearness, nearness_of
from ..transport.rates import Rate, Rates
from . import defaults
from .contact import Contact
from .slots import Slots

Connect = Callable[[PeerId, Sequence[Address]], Awaitable[Link]]
"""A link to a peer for a few questions (`Endpoint.ask`, `Ladder.ask`). Raises DialFailed."""


class Switchboard(Protocol):
    """What is needed of an `Endpoint`."""

    peer: PeerId

    def handle(self, method: str, handler: Handler) -> None: ...
    def link(self, peer: PeerId) -> Link | None: ...
    def links(self) -> list[Link]: ...


class BriefLinks:
    """Of links that others want too nothing is ended here."""

    def __init__(self, host: Host, endpoint: Switchboard, connect: Connect) -> None:
        self._host = host
        self._endpoint = endpoint
        self._connect = connect
        self._used: dict[Link, tuple[int, float]] = {}  # its turns, and when they last changed
        self._dials = Slots(defaults.BRIEF_DIALS)
        # Dialled in vain: until when it is not again, and where it was.
        self._resting: dict[PeerId, tuple[float, frozenset[Address]]] = {}
        self._knocks = Rates(Rate(*defaults.KNOCKS))  # at one public host, in vain

    def linked(self, peer: PeerId) -> bool:
        """Whether a question would need no dial."""
        link = self._endpoint.link(peer)
        return link is not None and link.connected and not link.quiet

    def count(self) -> int:
        """Brief links that are up."""
        return len(self._brief())

    async def to(
        self, contact: Contact, sure: Collection[Address] = (), by: Sequence[str] = ("",)
    ) -> Link:
        """The link to a contact, dialled where there is none. Raises DialFailed; `crowded` where
        it was given up for others.

        `sure` are addresses at which it has been met. At others a host is dialled in vain so often
        only: it may be somebody's who is to be bothered. `by` are the networks of those who named
        it, which have equal shares of all dials.
        """
        link = self._endpoint.link(contact.peer)
        if link is not None and link.connected:
            return link
        now = self._host.now()
        until, tried = self._resting.get(contact.peer, (now, frozenset()))
        if until > now and tried.issuperset(contact.addresses):
            raise DialFailed("unreachable", f"`{contact.peer}` did not answer a moment ago")
        dialled = await self._dials.use(by, partial(self._dial, contact, sure))
        if dialled is None:
            raise DialFailed("crowded", f"others were to be dialled before `{contact.peer}`")
        self._resting.pop(contact.peer, None)
        self.sweep()
        return dialled

    async def _dial(self, contact: Contact, sure: Collection[Address]) -> Link:
        guessed = [each for each in contact.addresses if each not in sure and _is_far(each)]
        hosts = {each.host for each in guessed}
        refused = {host for host in hosts if not self._knocks.take(host, self._host.now())}
        left = [
            each for each in contact.addresses if each not in guessed or each.host not in refused
        ]
        if contact.addresses and not left:
            raise DialFailed(
                "unreachable", f"too much was dialled in vain where `{contact.peer}` is"
            )
        try:
            link = await self._connect(contact.peer, left)
        except DialFailed:
            self._rest(contact)
            raise
        for host in hosts - refused:
            self._knocks.give(host, self._host.now())
        return link

    def forgive(self) -> None:
        """The network may have changed: everybody may be dialled again."""
        self._resting.clear()
        self._knocks = Rates(Rate(*defaults.KNOCKS))

    def _rest(self, contact: Contact) -> None:
        self._resting.pop(contact.peer, None)
        until = self._host.now() + defaults.BRIEF_REST
        self._resting[contact.peer] = until, frozenset(contact.addresses)
        while len(self._resting) > defaults.BRIEF_RESTING:
            del self._resting[next(iter(self._resting))]

    async def run(self) -> None:
        """Until cancelled: end those that nobody uses."""
        while True:
            await trio.sleep(defaults.BRIEF_LOOK)
            self.sweep()

    def sweep(self) -> None:
        """End brief links that were idle for long, and of too many those idle for longest."""
        now = self._host.now()
        idle: list[tuple[float, Link]] = []
        brief = self._brief()
        self._used = {link: self._used.get(link, (-1, now)) for link in brief}
        for link in brief:
            turns, at = self._used[link]
            if link.turns != turns or link.busy:
                self._used[link] = (link.turns, now)
            else:
                idle.append((at, link))
        idle.sort(key=lambda item: item[0])
        spare = len(brief) - defaults.BRIEF_LINKS
        for number, (at, link) in enumerate(idle):
            if number < spare or now - at >= defaults.BRIEF_IDLE:
                link.close("idle")

    def _brief(self) -> list[Link]:
        return [link for link in self._endpoint.links() if link.brief]


def _is_far(address: Address) -> bool:
    return nearness_of(address.host) is Nearness.PUBLIC
