"""One question to one contact, and what it tells of the contact and of those it names.

Whoever answered over a link that proves who it is may enter the table, with the addresses at
which it was seen to be; those that others name are only tried. No address is believed further
than the link it came by: a peer from afar cannot make this node knock at its owner's machines.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ..transport.address import Address
from ..transport.calls import Reply
from ..transport.errors import CallRefused, DialFailed, TransportError
from ..transport.frame import Priority
from ..transport.guard import Guard
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.link import Link
from ..transport.place import Nearness, nearness_at, nearness_of, plain_ip
from . import defaults
from .brieflinks import BriefLinks
from .contact import Contact, met_at
from .errors import BadMessage
from .messages import Find, Found, Store, decode_codes
from .table import Table

_SURE: Final = defaults.CONTACT_ADDRESSES - 1  # of the addresses at which a contact was met
_NO_SERVER: Final = ("not-serving", "unknown-method")
_NO_FAULT: Final = ("busy",)  # it is there
_STORES: Final = ("stores",)


class NoAnswer(Exception):
    """A contact did not answer, or not as it should; `code` says which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Asking:
    """`own` is this node's contact where it serves: those asked may ask it in turn."""

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
        self._met: OrderedDict[str, str] = OrderedDict()  # in which network who answered was met
        self.messages = 0
        """Questions sent so far."""
        self.disbelieved: Counter[str] = Counter()
        """How often an answer was none, by what was wrong with it."""

    async def find(self, contact: Contact, find: Find, by: Sequence[PeerId] = ()) -> Found:
        """`dht.find`; `by` are those who named the contact, where it is not from the table. Raises
        NoAnswer."""
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
        """`dht.store`: the code of each record, "" for kept. Raises NoAnswer."""
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
        """Whether a question would need no dial."""
        return self._links.linked(peer)

    def serves(self) -> Contact | None:
        """What a question says of this node."""
        return self._own()

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
            # Where it was met counts, or others could have it forgotten by naming it elsewhere.
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
        if seen.addresses:  # else nobody could be told where it is
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
        self.disbelieve(contact.peer, "bad-message")
        return NoAnswer("bad-message")

    def disbelieve(self, peer: PeerId, code: str) -> None:
        """It sent what is no answer: it is in the table no longer."""
        self.disbelieved[code] += 1
        self._table.forget(peer)

    def _believed(self, listed: Iterable[Contact], near: Nearness) -> tuple[Contact, ...]:
        """Contacts of an answer, with the addresses that may be dialled."""
        found = (_limited(each, near) for each in listed)
        return tuple(each for each in found if each.addresses or self._links.linked(each.peer))


def _limited(contact: Contact, near: Nearness) -> Contact:
    return _with(contact, dialable(contact.addresses, near))


def _with(contact: Contact, addresses: Sequence[Address]) -> Contact:
    """It with so many of its addresses: the same where that is all, with what it has computed."""
    if len(addresses) == len(contact.addresses):
        return contact
    return Contact(contact.peer, addresses)


def dialable(addresses: Sequence[Address], near: Nearness) -> list[Address]:
    """Those that are no nearer than whoever named them."""
    return [
        each
        for each in addresses
        if (nearness := nearness_of(each.host)) is not None and nearness <= near
    ]


def as_seen(contact: Contact, link: Link) -> Contact:
    """A contact with the addresses that a link to it bears out: the public one at which it was
    met, those of its own network as far as that is ours, and relays."""
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
    """Of two accounts of a peer the later, unless only the other says where all reach it."""
    if not seen.addresses or (known.networks and not seen.networks):
        return known
    return seen


def of_link(link: Link, known: Sequence[Address]) -> Contact:
    """The contact behind a link: where it was met, and where else it says to be."""
    found = list(known)
    ip, port = link.address[0], link.identities.port
    if ip and port and link.identities.dialled:
        found.insert(0, Address(ip, port, link.peer))
    return as_seen(Contact(link.peer, found), link)
