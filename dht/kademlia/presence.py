"""Presence of this node in the DHT: its mode, and the contact by which other nodes know it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...transport.address import Address
from ...transport.identity import PeerId
from ...transport.networks import Nearness, nearness_of
from ..records.contact import Contact
from .brieflinks import Connect
from .mode import ModeRule


def _nowhere(peer: PeerId) -> Sequence[Address]:
    """Return no addresses: the default `book`."""
    return ()


@dataclass(frozen=True, slots=True)
class Addressing:
    """Addresses of this node and of its peers, and the dialling of peers."""

    connect: Connect
    """Dials a peer for a few requests."""
    addresses: Callable[[], Sequence[Address]]
    """Returns this node's own addresses."""
    reachable: Callable[[], bool] = lambda: False
    """Returns whether this node is publicly reachable."""
    book: Callable[[PeerId], Sequence[Address]] = _nowhere
    """Returns the known addresses of a linked peer."""


class Presence:
    """Presence of the node `peer`: whether it serves, and the contact that it shows to others."""

    def __init__(self, peer: PeerId, addressing: Addressing, now: float) -> None:
        self.rule = ModeRule()
        self._peer = peer
        self.addressing = addressing
        self._shown: tuple[bool, list[Address], Contact] = False, [], Contact(peer)
        self.decide(0, now)

    def decide(self, servers: int, now: float) -> bool:
        """Update the mode, and return whether it has changed.

        `servers` is the number of contacts that are publicly reachable.
        """
        return self.rule.decide(self.addressing.reachable(), servers, now)

    def serves(self) -> bool:
        """Return whether this node serves."""
        return self.rule.serves

    def contact(self) -> Contact | None:
        """Return the contact that other nodes should know. None if this node does not serve."""
        if not self.rule.serves:
            return None
        reachable, found = self.addressing.reachable(), list(self.addressing.addresses())
        if self._shown[:2] == (reachable, found):
            return self._shown[2]  # the same object, because its properties are cached
        public = [
            each
            for each in found
            if each.relay is None and nearness_of(each.host) is Nearness.PUBLIC
        ]
        others = [each for each in found if each not in public]
        if not reachable:
            public = []  # peers could not dial them
        contact = Contact(self._peer, [*public, *others])
        self._shown = reachable, found, contact
        return contact
