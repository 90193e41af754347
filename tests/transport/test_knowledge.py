"""What a node believes of where its peers are."""

from dataclasses import replace

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.world import World
from shoal.transport.identity import PeerId
from shoal.transport.ladder import Rungs
from shoal.transport.link import Link
from shoal.transport.pipe import Way
from shoal.transport.punch.candidates import Candidate, Kind, Transport
from shoal.transport.punch.needs import Own
from shoal.transport.relay.vouch import Vouched
from tests.transport.test_ladder import Street, until

NO_MULTICAST = Rungs(lan=False)
INSIDE = [
    Candidate(("192.168.1.3", port), Kind.LAN, transport)
    for port in (8080, 8443)
    for transport in (Transport.TCP, Transport.UDP)
]


def _lying(foe: Climber) -> None:
    """A peer that says to be where somebody else's neighbours are."""
    own = foe.ladder.knowledge.own

    def lie(peer: PeerId) -> Own:
        return replace(own(peer), candidates=INSIDE)

    foe.ladder.knowledge.own = lie  # type: ignore[method-assign]


async def _hits(world: World, *, believed: bool) -> int:
    """A peer and a relay of one hand; packets at another computer of the victim's home."""
    street = Street(world)
    town = street.town
    await street.relays()
    router = world.gateway("router", "linux-drop")
    victim = await town.node(world.host("victim", behind=router))
    other, hits = world.host("other", behind=router), 0
    assert other.addresses()[0] == "192.168.1.3"
    take = other.take

    def count(packet: object) -> None:
        nonlocal hits
        hits += 1
        take(packet)  # type: ignore[arg-type]

    other.take = count  # type: ignore[method-assign]
    await street.settle(victim)
    evil = await town.relay(world.host("evil"))
    foe = await street.home("foe", "linux-drop")
    await foe.connect(evil.peer, [evil.address()])
    await until(lambda: foe.ladder.relays.relays)
    seen = Vouched(router.wan.addresses[0], 4001, 4001)
    evil.ladder.relaying._seen = lambda link: seen
    _lying(foe)
    if believed:
        knowledge = victim.ladder.knowledge
        knowledge._by_own = knowledge._vouched
    hits = 0
    link = await victim.connect(foe.peer, [evil.address().through(foe.peer)])
    await until(lambda: victim.ladder.outcome(foe.peer) is not None)
    assert link.way is Way.RELAYED
    return hits


async def test_a_peer_s_own_relay_does_not_lead_to_our_neighbours(world: World) -> None:
    assert await _hits(world, believed=False) == 0


async def test_it_would_if_any_relay_were_believed(world: World) -> None:
    assert await _hits(world, believed=True) > 0


async def test_relays_of_our_own_choice_do_where_multicast_does_not(world: World) -> None:
    street = Street(world)
    await street.relays()
    router = world.gateway("router", "linux-drop")
    a, b = [
        await street.town.node(world.host(name, behind=router), rungs=NO_MULTICAST) for name in "ab"
    ]
    await street.settle(a, b)
    circuits = [each for each in b.addresses() if each.relay is not None]
    link: Link = await a.connect(b.peer, circuits)
    await until(lambda: link.way is Way.LAN)
