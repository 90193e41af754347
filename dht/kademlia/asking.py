"""Sends one request to one contact, and learns from the reply.

A peer that answered over an authenticated link may enter the routing table, with the addresses at
which it was seen. Contacts that a reply names are only candidates. An address is never trusted
further than the link it came over: a remote peer cannot make this node dial machines in its
owner's local network.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...transport.address import Address
from ...transport.errors import CallRefused, DialFailed, TransportError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Reply
from ...transport.link.link import Link
from ...transport.networks import Nearness, nearness_at, nearness_of, plain_ip
from .. import defaults
from ..errors import BadMessage
from ..records.contact import Contact, met_at
from .brieflinks import BriefLinks
from .messages import Find, Found, Store, decode_codes
from .table import Table

_SURE: Final = defaults.CONTACT_ADDRESSES - 1  # most addresses to take over from the table
_NO_SERVER: Final = ("not-serving", "unknown-method")
_NO_FAULT: Final = ("busy",)  # the peer is alive
_STORES: Final = ("stores",)


class NoAnswer(Exception):
    """A contact did not reply, or sent an invalid reply; `code` says which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Asking:
    """Client side of `dht.find` and `dht.store`.

    `own` returns this node's contact while it serves, so that the peers it asks can add it.
    """

    def __init__(
        self,
        host: Host,
        links: BriefLinks,
        table: Table,
        own: Callable[[], Contact | None],
        guard: Guard | None = None,
    ) -> None:
        self.guard = guard or Guard()
        self._host = host
        self._links = links
        self._table = table
        self._own = own
        self._met: OrderedDict[str, str] = OrderedDict()  # peer -> network where it answered
        self.messages = 0
        """Requests sent so far."""
        self.disbelieved: Counter[str] = Counter()
        """How often a reply was rejected, by reason."""

    async def find(self, contact: Contact, find: Find, by: Sequence[PeerId] = ()) -> Found:
        """Send `dht.find`. `by` are the peers that named the contact, empty for one of the table.

        Raises NoAnswer.
        """
        names = [self._met.get(each, each) for each in by] or [""]
        link, reply = await self._ask(contact, "dht.find", find.encode(), defaults.FIND_S, names)
        try:
            found = Found.decode(bytes(reply.payload), find)
        except BadMessage:
            raise self._lied(contact) from None
        self._answered(contact, link)
        near = nearness_at(link.address[0])
        nearest = tuple(self._believed(listed, near) for listed in found.nearest)
        return Found(found.records, nearest)

    async def store(self, contact: Contact, store: Store) -> tuple[str, ...]:
        """Send `dht.store`; return a code for each record, "" where stored. Raises NoAnswer."""
        link, reply = await self._ask(
            contact, "dht.store", store.encode(), defaults.STORE_S, _STORES
        )
        try:
            codes = decode_codes(bytes(reply.payload), len(store.records))
        except BadMessage:
            raise self._lied(contact) from None
        self._answered(contact, link)
        return codes

    def linked(self, peer: PeerId) -> bool:
        """Whether a request to the peer needs no dial."""
        return self._links.linked(peer)

    def serves(self) -> bytes | None:
        """Return the packed contact of this node that requests carry, or None if it does not
        serve."""
        own = self._own()
        return None if own is None else own.packed

    async def _ask(
        self,
        contact: Contact,
        method: str,
        payload: bytes,
        timeout: float,
        by: Sequence[str],
    ) -> tuple[Link, Reply]:
        self.messages += 1
        sure: Sequence[Address] = ()
        if (known := self._table.contact(contact.peer)) is not None:
            # Addresses where it answered come first: otherwise other peers could get it evicted by
            # naming it at wrong addresses.
            sure = known.addresses
            if contact.addresses != sure:
                contact = Contact(contact.peer, [*sure[:_SURE], *contact.addresses])
        try:
            link = await self._links.to(contact, sure, by)
            reply = await link.call(
                method, payload=payload, priority=Priority.CONTROL, timeout=timeout
            )
        except TransportError as error:
            raise self._failed(contact, error) from None
        return link, reply

    def _answered(self, contact: Contact, link: Link) -> None:
        self._met[contact.peer] = met_at(link.address[0]) or link.address[0]
        self._met.move_to_end(contact.peer)
        while len(self._met) > defaults.MET:
            self._met.popitem(last=False)
        known = self._table.contact(contact.peer)
        seen = as_seen(contact, link)
        if known is not None:
            seen = better(known, seen)
        if seen.addresses:  # a contact without an address is useless to other nodes
            self._table.answered(seen, self._host.now())

    def _failed(self, contact: Contact, error: TransportError) -> NoAnswer:
        if isinstance(error, CallRefused) and error.code in _NO_SERVER:
            self._table.forget(contact.peer)
        elif error.code != "crowded" and (
            isinstance(error, DialFailed) or error.code not in _NO_FAULT
        ):
            self._table.failed(contact.peer, self._host.now())
        return NoAnswer(error.code)

    def _lied(self, contact: Contact) -> NoAnswer:
        self.reject(contact.peer, "bad-message")
        return NoAnswer("bad-message")

    def reject(self, peer: PeerId, code: str) -> None:
        """Evict a peer that sent a malformed reply from the routing table."""
        self.disbelieved[code] += 1
        self._table.forget(peer)

    def _believed(self, listed: Iterable[Contact], near: Nearness) -> tuple[Contact, ...]:
        """Return the contacts of a reply with only the addresses that may be dialled."""
        found = (_limited(each, near) for each in listed)
        return tuple(each for each in found if each.addresses or self._links.linked(each.peer))


def _limited(contact: Contact, near: Nearness) -> Contact:
    return _with(contact, dialable(contact.addresses, near))


def _with(contact: Contact, addresses: Sequence[Address]) -> Contact:
    """Return the contact with only `addresses`; the same object (and its caches) if that is all."""
    if len(addresses) == len(contact.addresses):
        return contact
    return Contact(contact.peer, addresses)


def dialable(addresses: Sequence[Address], near: Nearness) -> list[Address]:
    """Return the addresses that are no nearer than the peer that named them."""
    return [
        each
        for each in addresses
        if (nearness := nearness_of(each.host)) is not None and nearness <= near
    ]


def as_seen(contact: Contact, link: Link) -> Contact:
    """Return a contact with only the addresses that a link to it confirms.

    These are the public address at which the link was made, addresses in a local network as far
    as the peer is in it too, and addresses at relays.
    """
    ip = link.address[0]
    found = [
        each
        for each in dialable(contact.addresses, nearness_at(ip))
        if each.relay is not None
        or nearness_of(each.host) is not Nearness.PUBLIC
        or plain_ip(each.host) == plain_ip(ip)
    ]
    return _with(contact, found)


def better(known: Contact, seen: Contact) -> Contact:
    """Return the later account of a peer, unless only the earlier has a publicly reachable one."""
    if not seen.addresses or (known.networks and not seen.networks):
        return known
    return seen


def of_link(link: Link, known: Sequence[Address]) -> Contact:
    """Return the contact behind a link: the address that was dialled, then those in `known`."""
    found = list(known)
    ip, port = link.address[0], link.identities.port
    if ip and port and link.identities.dialled:
        found.insert(0, Address(ip, port, link.peer))
    return as_seen(Contact(link.peer, found), link)
