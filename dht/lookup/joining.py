"""Joining: fills the routing table at the start or after a network failure, and keeps it fresh.

A peer that may serve is sent one small request (a *probe*), and enters the table only if it
answers. The first peers are linked peers and the contacts of the last run. The node then looks up
its own key, and a random key in each bucket that had no look-up for an hour.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import trio

from ...transport.address import Address
from ...transport.identity import PeerId
from ...transport.link.link import Link
from .. import defaults
from ..kademlia.asking import NoAnswer, as_seen, better, of_link
from ..kademlia.messages import Find
from ..kademlia.slots import FairSlots
from ..records.contact import Contact, met_at
from ..records.key import node_key
from .client import DhtClient
from .searching import Searching


class Joining:
    """Joining and upkeep of the routing table.

    `links` returns the open links, and `addresses(peer)` further known addresses of a linked peer.
    If the dials of background work are limited, the first look-up begins `SURVEY_AFTER` seconds
    after the first contact, because new links bring many contacts in this time.
    """

    def __init__(
        self,
        client: DhtClient,
        searching: Searching,
        *,
        links: Callable[[], list[Link]],
        addresses: Callable[[PeerId], Sequence[Address]],
    ) -> None:
        self._remembered: Sequence[Contact] = ()  # contacts of the last run
        self.joined = trio.Event()
        """Set once the first look-up of this node's own key has ended. If background dials are
        limited, it is set earlier: once a serving peer is known."""
        self._host = client.host
        self._own = node_key(client.peer)
        self._table = client.table
        self._asking = client.asking
        self._searching = searching
        self._links = links
        self._addresses = addresses
        self._survey_after = 0.0 if client.limiter is None else defaults.SURVEY_AFTER
        self._to_probe: dict[PeerId, tuple[Contact, str]] = {}  # contact, network of the link
        self._probes = FairSlots(
            defaults.PROBES_AT_ONCE, waiting=defaults.PROBES - defaults.PROBES_AT_ONCE
        )
        self._asked: OrderedDict[PeerId, tuple[float, bool]] = OrderedDict()
        """When a peer may be probed again, and whether it had an address at the last probe."""
        self._looked: float | None = None  # time of the last look-up of the own key
        self._news = trio.Event()
        self._first_reply = trio.Event()  # set when a peer has answered

    def is_settled(self) -> bool:
        """Return whether a look-up of this node's own key ended in the last `OWN_LOOK` seconds."""
        return self._looked is not None and self._host.now() - self._looked < defaults.OWN_LOOK

    def look_again(self) -> None:
        """Schedule a look-up of this node's own key."""
        self._looked = None

    # Peers that make contact.

    def on_linked(self, link: Link) -> None:
        """Queue the peer of a new link for a probe.

        Links that this node did not dial, or dialled only for a few requests, are ignored.
        """
        if not link.brief and link.identities.dialled:
            self._consider(of_link(link, self._addresses(link.peer)), link)

    def on_request(self, link: Link, contact: Contact) -> None:
        """Register a peer that sent a request and says that it serves.

        If the peer is in the table, its contact is updated. Otherwise it is queued for a probe.
        """
        seen = as_seen(contact, link)
        known = self._table.contact(contact.peer)
        if known is None:
            self._consider(seen, link)
        else:
            self._table.answered(better(known, seen), self._host.now())

    def _consider(self, contact: Contact, link: Link) -> None:
        """Queue a peer for a probe, unless it is in the table or was probed recently."""
        # A peer without an address cannot enter the table. Once it has one, for example at a
        # relay, it is probed again without waiting for the usual pause.
        until, placed = self._asked.get(contact.peer, (-inf, False))
        resting = until > self._host.now() and (placed or not contact.addresses)
        if contact.peer in self._table or resting:
            return
        if len(self._to_probe) < defaults.PROBES:
            ip = link.address[0]
            self._to_probe[contact.peer] = contact, met_at(ip) or ip
            self._news.set()

    # Running.

    async def run(self, remembered: Sequence[Contact] = ()) -> None:
        """Probe peers and refresh the table until cancelled.

        `remembered` are the contacts of the last run.
        """
        self._remembered = remembered
        async with trio.open_nursery() as nursery:
            guard = self._asking.guard
            guard.start_repeated(nursery, "peers to probe", self._probe_queued, nursery)
            guard.start_repeated(nursery, "contacts to refresh", self._keep_fresh)

    async def _probe_queued(self, nursery: trio.Nursery) -> None:
        """Probe the queued peers, until cancelled.

        Networks share the slots fairly, because an attacker may connect many peers that never
        answer.
        """
        guard = self._asking.guard
        while True:
            self._news = trio.Event()
            while self._to_probe:
                peer = next(iter(self._to_probe))
                contact, source = self._to_probe.pop(peer)
                with guard.around(peer):
                    self._rest(contact)
                    guard.start(nursery, peer, self._probe_in_slot, contact, source)
            await self._news.wait()

    async def _probe_in_slot(self, contact: Contact, source: str) -> None:
        """Wait for a slot and probe a peer.

        If the peer loses its slot, it may be queued again at once.
        """
        if not await self._probes.use([source], partial(self._probe, contact)):
            self._asked.pop(contact.peer, None)  # it was not probed

    def _rest(self, contact: Contact) -> None:
        """Start the pause in which a peer is not probed again."""
        self._asked.pop(contact.peer, None)
        until = self._host.now() + defaults.PROBE_PAUSE
        self._asked[contact.peer] = until, bool(contact.addresses)
        while len(self._asked) > defaults.BRIEF_RESTING:
            self._asked.popitem(last=False)

    async def _probe(self, contact: Contact) -> bool:
        """Send one request to a peer. If it answers, `Asking` adds it to the table.

        Returns True in any case, which means that the peer was asked.
        """
        self._rest(contact)
        try:
            await self._asking.find(contact, self._question())
        except NoAnswer:
            return True
        self._first_reply.set()
        return True

    def _question(self) -> Find:
        """Return the request of a probe.

        It asks for contacts only while the table is empty, because twenty contacts take 3 kB and a
        look-up of the own key returns them anyway.
        """
        about = () if len(self._table) else (self._own,)
        return Find((), about, 0, (), self._asking.serves())

    async def _keep_fresh(self) -> None:
        """Find first contacts if the table is empty, and refresh its buckets, until cancelled."""
        pause = defaults.JOIN_PAUSE[0]
        while True:
            if not len(self._table):
                await self._bootstrap()
            if len(self._table):
                if self._survey_after and not self.joined.is_set():
                    self.joined.set()  # the linked peers are known
                    lot = int.from_bytes(self._host.entropy(2)) / 2**16
                    # The random part prevents nodes that start together from surveying together.
                    await trio.sleep(self._survey_after * (1 + lot))
                await self._refresh()
                self.joined.set()
                pause = defaults.JOIN_PAUSE[0]
                await trio.sleep(defaults.REFRESH_LOOK)
            else:
                with trio.move_on_after(pause):
                    await self._first_reply.wait()
                pause = min(2 * pause, defaults.JOIN_PAUSE[1])

    async def _bootstrap(self) -> None:
        """Probe linked peers, then remembered contacts, until one answers."""
        self._first_reply = trio.Event()
        linked: list[Contact] = []
        for link in self._links():
            with self._asking.guard.around(link.peer):
                linked.append(of_link(link, self._addresses(link.peer)))
        found = {contact.peer: contact for contact in (*linked, *self._remembered)}
        waiting = list(found.values())[: defaults.REMEMBERED]

        async def ask() -> None:
            while waiting and not self._first_reply.is_set():
                contact = waiting.pop(0)
                with self._asking.guard.around(contact.peer):
                    await self._probe(contact)

        async with trio.open_nursery() as nursery:
            at_once = defaults.BOOTSTRAP_AT_ONCE if self._survey_after else defaults.BRIEF_DIALS
            for _ in range(at_once):
                nursery.start_soon(ask)

    async def _refresh(self) -> None:
        """Look up the keys that are due, and ping contacts that were silent for long.

        The first call looks up only this node's own key.
        """
        now = self._host.now()
        if not self.is_settled():
            await self._searching.survey(self._own)
            self._looked = self._host.now()
        due = self._table.refresh_due(now)
        for contact in self._table.to_check(now, defaults.CHECK_QUIET):
            with self._asking.guard.around(contact.peer):
                await self._probe(contact)
        for key in due:
            await self._searching.survey(key)
