"""Names, through trio's resolver and over the wire."""

import socket as stdlib
from random import Random
from typing import Any

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.resolver
import pytest
import trio

from shoal.netsim import defaults
from shoal.netsim.network.dns import NameServer, answer
from shoal.netsim.world import World

ZONE = {"peer.example": ["192.0.2.1", "192.0.2.2", "2001:db8::1"], "six.example": ["2001:db8::2"]}


def looked_up(world: World, *args: Any, **kwargs: Any) -> Any:
    host = world.hosts.get("alice") or world.host("alice")
    world.names.update(ZONE)

    async def program() -> Any:
        found = await trio.socket.getaddrinfo(*args, **kwargs)
        return found, trio.current_time()

    return world.run(host.run, program)


def addresses(found: Any) -> list[str]:
    return [entry[4][0] for entry in found]


def test_a_name_has_its_addresses_after_a_round_trip() -> None:
    found, now = looked_up(World(), "peer.example", 80, type=stdlib.SOCK_STREAM)
    assert addresses(found) == ["2001:db8::1", "192.0.2.1", "192.0.2.2"]
    assert found[0][4] == ("2001:db8::1", 80, 0, 0) and found[1][4] == ("192.0.2.1", 80)
    assert found[1][:4] == (stdlib.AF_INET, stdlib.SOCK_STREAM, 6, "")
    assert now == defaults.DNS_ROUND_TRIP_S


@pytest.mark.parametrize(
    ("family", "flags", "expected"),
    [
        (stdlib.AF_INET, 0, ["192.0.2.1", "192.0.2.2"]),
        (stdlib.AF_INET6, 0, ["2001:db8::1"]),
        (stdlib.AF_INET6, stdlib.AI_V4MAPPED, ["2001:db8::1"]),
    ],
)
def test_families(family: int, flags: int, expected: list[str]) -> None:
    found, _ = looked_up(World(), "PEER.example.", 1, family, stdlib.SOCK_DGRAM, 0, flags)
    assert addresses(found) == expected


@pytest.mark.parametrize("name", ["nobody.example", "x" * 60 + ".example"])
def test_no_such_name(name: str) -> None:
    with pytest.raises(stdlib.gaierror) as caught:
        looked_up(World(), name, 80)
    assert caught.value.errno == stdlib.EAI_NONAME


def test_a_name_without_addresses_of_the_family() -> None:
    with pytest.raises(stdlib.gaierror) as caught:
        looked_up(World(), "six.example", 80, stdlib.AF_INET)
    assert caught.value.errno == stdlib.EAI_NONAME


def test_an_unknown_service() -> None:
    with pytest.raises(stdlib.gaierror) as caught:
        looked_up(World(), "peer.example", "no-such-service")
    assert caught.value.errno == stdlib.EAI_SERVICE


def test_a_host_without_network() -> None:
    world = World()
    gateway = world.gateway("router", "router")
    world.host("alice", behind=gateway)
    gateway.up = False
    with pytest.raises(stdlib.gaierror) as caught:
        looked_up(world, "peer.example", 80)
    assert caught.value.errno == stdlib.EAI_AGAIN
    assert looked_up(world, "localhost", 80, stdlib.AF_INET)[0][0][4] == ("127.0.0.1", 80)


def test_hosts_are_names_and_addresses_have_theirs() -> None:
    world = World()
    host, bob = world.host("alice"), world.host("Bob")

    async def program() -> Any:
        found = await trio.socket.getaddrinfo("Bob", 1)
        assert addresses(found)[0] == bob.addresses()[0]
        return await trio.socket.getnameinfo((bob.addresses()[0], 1), 0)

    assert world.run(host.run, program) == ("Bob", "1")


def served(query: dns.message.Message) -> dns.message.Message:
    response = answer(ZONE, query.to_wire())
    assert response is not None
    return dns.message.from_wire(response)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("peer.example.", "A", {"192.0.2.1", "192.0.2.2"}),
        ("Peer.EXAMPLE.", "AAAA", {"2001:db8::1"}),
        ("six.example.", "A", set()),
        ("peer.example.", "TXT", set()),
    ],
)
def test_answers(name: str, kind: str, expected: set[str]) -> None:
    query = dns.message.make_query(name, kind)
    response = served(query)
    assert query.is_response(response) and response.rcode() == dns.rcode.NOERROR
    assert {item.address for rrset in response.answer for item in rrset} == expected


def test_answers_that_refuse() -> None:
    assert served(dns.message.make_query("nobody.example.", "A")).rcode() == dns.rcode.NXDOMAIN
    chaos = dns.message.make_query("peer.example.", "A", "CH")
    assert served(chaos).rcode() == dns.rcode.NOTIMP
    assert answer(ZONE, b"short") is None
    response = answer(ZONE, dns.message.make_query("peer.example.", "A").to_wire())
    assert response is not None and answer(ZONE, response) is None


def test_a_long_answer_is_truncated_and_marked() -> None:
    zone = {"many": [f"10.0.0.{number}" for number in range(99)]}
    response = answer(zone, dns.message.make_query("many.", "A").to_wire())
    assert response is not None and len(response) <= 512
    assert dns.flags.TC & int.from_bytes(response[2:4], "big")


def test_hostile_bytes_are_answered_or_not_but_never_raise() -> None:
    random = Random(1)
    good = dns.message.make_query("peer.example.", "A").to_wire()
    for _ in range(3000):
        data = bytearray(good if random.random() < 0.8 else random.randbytes(random.randrange(80)))
        for _ in range(random.randrange(4)):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        response = answer(ZONE, bytes(data[: random.randrange(len(data) + 1)]))
        assert response is None or len(response) <= 512
    loop = good[:12] + b"\xc0\x0c\0\1\0\1"  # a name that points to itself
    assert answer(ZONE, loop) is not None
    assert answer(ZONE, good[:12] + b"\x01a" * 300 + b"\0\0\1\0\1") is not None


def test_a_program_that_speaks_dns_itself() -> None:
    world = World(latency=0.03)
    server, alice = world.host("ns"), world.host("alice")
    world.names.update(ZONE)

    async def program() -> Any:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = [server.addresses()[0]]
        found = await resolver.resolve("peer.example", "A")
        assert {item.address for item in found} == {"192.0.2.1", "192.0.2.2"}
        assert trio.current_time() == 0.06
        with pytest.raises(dns.resolver.NXDOMAIN):
            await resolver.resolve("nobody.example", "A")

    async def main() -> None:
        await server.start(NameServer(world.names))
        await alice.run(program)

    world.run(main)
