"""presence: the mode follows the reachability, and the contact has what other nodes can dial."""

from shoal.dht.defaults import SERVERS
from shoal.dht.kademlia.brieflinks import Connect
from shoal.dht.kademlia.presence import Addressing, Presence
from shoal.transport.address import Address
from tests.dht.nodes import peer

ME = peer(1)


async def refuse(*_args: object) -> object:
    raise AssertionError


CONNECT: Connect = refuse  # type: ignore[assignment]


def test_a_client_has_no_contact() -> None:
    reached = False
    addressing = Addressing(CONNECT, lambda: [Address("9.9.9.9", 4001, ME)], lambda: reached)
    presence = Presence(ME, addressing, 0.0)
    assert presence.serves(), "too few servers are known"
    contact = presence.contact()
    assert contact is not None and contact.addresses == (), "peers could not dial it"
    assert presence.decide(SERVERS[1], 1.0)
    assert not presence.serves() and presence.contact() is None
    reached = True
    assert presence.decide(SERVERS[1], 2.0)
    contact = presence.contact()
    assert contact is not None and len(contact.addresses) == 1
    assert presence.contact() is contact
