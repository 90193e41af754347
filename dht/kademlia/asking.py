"""Client side of the DHT: sends one request to one contact, and evaluates the reply.

A peer that answered over an authenticated link may enter the routing table, with those of its
addresses that the link confirms. Contacts in a reply are only candidates. An address in a local
network is dialled only if the peer that named it is in that network or on this machine. A peer on
the internet therefore cannot make this node dial machines in its owner's local network.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...transport.address import Address
from ...transport.defaults import HASTE_S, PATIENCE_S
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
from .messages import Find, FindReply, StoreRequest, decode_codes
from .table import Table

_SURE: Final = defaults.CONTACT_ADDRESSES - 1  # most addresses copied from the table
_NO_SERVER: Final = ("not-serving", "unknown-method")
_NO_FAULT: Final = ("busy",)  # the peer is alive and serves
_STORES: Final = ("stores",)


class NoAnswer(Exception):
    """A contact did not reply, or its reply is invalid. `code` names the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class DhtRequests:
    """Client side of `dht.find` and `dht.store`.

    `own` returns this node's contact, or None while it does not serve. Requests carry this contact,
    so that their receivers can add this node to their tables.
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
        """Number of requests sent so far."""
        self.disbelieved: Counter[str] = Counter()
        """Number of replies that were rejected, by error code."""

    async def find(self, contact: Contact, find: Find, by: Sequence[PeerId] = ()) -> FindReply:
        """Send `dht.find` to a contact, and return the reply.

        `by` are the peers that named the contact. It is empty if the contact is in the routing
        table. Raises NoAnswer if there is no valid reply.
        """
        names = [self._met.get(each, each) for each in by] or [""]
        link, reply = await self._ask(contact, "dht.find", find.encode(), defaults.FIND_S, names)
        try:
            found = FindReply.decode(bytes(reply.payload), find)
        except BadMessage:
            raise self._lied(contact) from None
        self._answered(contact, link)
        near = nearness_at(link.address[0])
        nearest = tuple(self._believed(listed, near) for listed in found.nearest)
        return FindReply(found.records, nearest)

    async def store(self, contact: Contact, store: StoreRequest) -> tuple[str, ...]:
        """Send `dht.store` to a contact. Return a code for each record, "" for a stored one.

        Raises NoAnswer if there is no valid reply.
        """
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
        """Return whether there is a working link to the peer, so that a request needs no dial."""
        return self._links.linked(peer)

    def serves(self) -> bytes | None:
        """Return this node's encoded contact for requests, or None if this node does not serve."""
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
        """Send a request; return the link and the reply. Raises NoAnswer if the request fails.

        `by` are the networks of the peers that named the contact.
        """
        self.messages += 1
        sure: Sequence[Address] = ()
        if (known := self._table.contact(contact.peer)) is not None:
            # The addresses at which the contact has answered come first. Otherwise other peers
            # could get it evicted from the table by naming wrong addresses.
            sure = known.addresses
            if contact.addresses != sure:
                contact = Contact(contact.peer, [*sure[:_SURE], *contact.addresses])
        try:
            link = await self._links.to(contact, sure, by)
            reply = await link.call(
                method,
                payload=payload,
                priority=Priority.CONTROL,
                timeout=timeout,
                within=PATIENCE_S if method == "dht.store" else HASTE_S,
            )
        except TransportError as error:
            raise self._failed(contact, error) from None
        return link, reply

    def _answered(self, contact: Contact, link: Link) -> None:
        """Record the IP network from which a contact has answered, and update the routing table."""
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
        """Record a failed request in the routing table, and return the exception to raise."""
        if isinstance(error, CallRefused) and error.code in _NO_SERVER:
            self._table.forget(contact.peer)
        elif error.code != "crowded" and (
            isinstance(error, DialFailed) or error.code not in _NO_FAULT
        ):
            self._table.failed(contact.peer, self._host.now())
        return NoAnswer(error.code)

    def _lied(self, contact: Contact) -> NoAnswer:
        """Evict a contact that sent a malformed reply, and return the exception to raise."""
        self.reject(contact.peer, "bad-message")
        return NoAnswer("bad-message")

    def reject(self, peer: PeerId, code: str) -> None:
        """Evict a peer whose reply was invalid from the routing table, and count the reason."""
        self.disbelieved[code] += 1
        self._table.forget(peer)

    def _believed(self, listed: Iterable[Contact], near: Nearness) -> tuple[Contact, ...]:
        """Return the contacts of a reply, reduced to the addresses that this node may dial.

        Contacts without such an address are left out, unless they are linked.
        """
        found = (_limited(each, near) for each in listed)
        return tuple(each for each in found if each.addresses or self._links.linked(each.peer))


def _limited(contact: Contact, near: Nearness) -> Contact:
    """Return the contact with only the addresses that a peer at distance `near` may name."""
    return _with(contact, dialable(contact.addresses, near))


def _with(contact: Contact, addresses: Sequence[Address]) -> Contact:
    """Return the contact reduced to `addresses`, which must be some or all of its addresses.

    If they are all, the same object is returned, because its properties are cached.
    """
    if len(addresses) == len(contact.addresses):
        return contact
    return Contact(contact.peer, addresses)


def dialable(addresses: Sequence[Address], near: Nearness) -> list[Address]:
    """Return the addresses that are not nearer to this node than the peer that named them."""
    return [
        each
        for each in addresses
        if (nearness := nearness_of(each.host)) is not None and nearness <= near
    ]


def as_seen(contact: Contact, link: Link) -> Contact:
    """Return a contact with only the addresses that a link to it confirms.

    These are the public address at which the link was made, addresses in a local network if the
    peer is in the same network, and addresses at relays.
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
    """Choose between two contacts of one peer: `known`, and the later one `seen`.

    Returns `seen`, unless it has no address, or only `known` has a public address.
    """
    if not seen.addresses or (known.networks and not seen.networks):
        return known
    return seen


def of_link(link: Link, known: Sequence[Address]) -> Contact:
    """Return the contact of a linked peer, with only the addresses that the link confirms.

    If this node dialled the peer, the dialled address comes first. The addresses in `known` follow.
    """
    found = list(known)
    ip, port = link.address[0], link.identities.port
    if ip and port and link.identities.dialled:
        found.insert(0, Address(ip, port, link.peer))
    return as_seen(Contact(link.peer, found), link)
