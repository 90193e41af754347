"""The classifier against every kind of gateway, liars and forgers."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.netsim.nat.kinds import KINDS
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.identity import PeerId
from shoal.transport.nat.reach import defaults, stun
from shoal.transport.nat.reach.natkind import Classifier, NatProbe, NatRequest, Observer
from shoal.transport.nat.reach.reachability import Behaviour, Pattern, UdpKind
from shoal.transport.nat.reach.stun import MessageClass, StunMessage
from tests.transport.nat.reach.gates import Liar, Volunteer, kind_of, volunteers

EI = Behaviour.ENDPOINT_INDEPENDENT
AD = Behaviour.ADDRESS_DEPENDENT
APD = Behaviour.ADDRESS_AND_PORT_DEPENDENT
NONE = Behaviour.NONE
BY_LETTERS = {"ei": EI, "ad": AD, "apd": APD}
KEEPS, RANDOM, ORDERED = Pattern.PRESERVING, Pattern.RANDOM, Pattern.SEQUENTIAL

TRUTH = {
    "router": (NONE, EI, KEEPS),
    "public-firewall": (NONE, APD, KEEPS),
    "linux-drop": (EI, APD, KEEPS),
    "linux-accept": (EI, APD, KEEPS),
    "linux-reject": (EI, APD, KEEPS),
    "linux-random": (APD, APD, RANDOM),
    "linux-fully-random": (APD, APD, RANDOM),
    "linux-persistent": (EI, APD, KEEPS),
    "full-cone": (EI, EI, KEEPS),
    "address-restricted": (EI, AD, KEEPS),
    "port-restricted": (EI, APD, KEEPS),
    "full-cone-hairpin": (EI, EI, KEEPS),
    "cgn": (EI, EI, RANDOM),
    "firewall6": (EI, APD, KEEPS),
    **{
        f"{m}m-{f}f": (BY_LETTERS[m], BY_LETTERS[f], KEEPS if m == "ei" else RANDOM)
        for m in BY_LETTERS
        for f in BY_LETTERS
    },
}
BLOCKED = ("udp-blocked", "no-network")


def behind(world: World, kind: str, **knobs: Any) -> Any:
    return world.host("node", behind=world.gateway("gate", kind, **knobs))


def seen(found: UdpKind) -> tuple[Behaviour, Behaviour, Pattern]:
    return found.mapping, found.filtering, found.allocation.pattern


def test_every_kind_is_here() -> None:
    assert set(TRUTH) | set(BLOCKED) == set(KINDS)


@pytest.mark.parametrize("observers", [2, 3, 4])
@pytest.mark.parametrize("kind", TRUTH)
async def test_kinds(world: World, kind: str, observers: int) -> None:
    found = await kind_of(world, behind(world, kind), volunteers(world, observers))
    assert seen(found) == TRUTH[kind]
    assert (found.answered, found.blocked, found.dissenters) == (observers, False, ())
    assert world.events.now < 6


@pytest.mark.parametrize("kind", BLOCKED)
async def test_blocked(world: World, kind: str) -> None:
    found = await kind_of(world, behind(world, kind), volunteers(world, 3))
    assert found == UdpKind(blocked=True, asked=3)
    assert world.events.now < 6


async def test_one_silent_observer_does_not_mean_blocked(world: World) -> None:
    found = await kind_of(world, behind(world, "udp-blocked"), volunteers(world, 1))
    assert found.blocked is None


async def test_without_observers_nothing_is_known(world: World) -> None:
    assert await kind_of(world, behind(world, "linux-drop"), []) == UdpKind()


@pytest.mark.parametrize("kind", ["linux-drop", "full-cone", "adm-adf", "apdm-apdf"])
async def test_one_observer_tells_only_what_it_can(world: World, kind: str) -> None:
    """An observer's second port shows only a dependence on the port."""
    found = await kind_of(world, behind(world, kind), volunteers(world, 1))
    dependent = kind == "apdm-apdf"
    assert found.mapping is (APD if dependent else Behaviour.UNKNOWN)
    strict = TRUTH[kind][1] is APD
    assert found.filtering is (APD if strict else Behaviour.UNKNOWN)


@pytest.mark.parametrize("kind", ["linux-drop", "adm-apdf", "apdm-apdf", "public-firewall"])
async def test_without_second_ports(world: World, kind: str) -> None:
    """Then a dependence on the port cannot be detected."""
    single = volunteers(world, 3, lambda computer: Volunteer(computer, (4001,)))
    found = await kind_of(world, behind(world, kind), single)
    assert found.mapping is (APD if kind == "adm-apdf" else TRUTH[kind][0])


@pytest.mark.parametrize("mapping", ["ei", "ad", "apd"])
@pytest.mark.parametrize("noise", [0, 5])
async def test_sequential(world: World, mapping: str, noise: int) -> None:
    """Also while a neighbour opens its own mappings."""
    gate = world.gateway("gate", f"{mapping}m-apdf", ports="sequential")
    node, neighbour = world.host("node", behind=gate), world.host("neighbour", behind=gate)

    async def talk() -> None:
        for number in range(noise):
            sock = await neighbour.run(_udp_socket)
            await sock.sendto(b"?", ("11.0.0.1", 9000 + number))
            await trio.sleep(0.05)

    found = await kind_of(world, node, volunteers(world, 3), meanwhile=talk)
    assert found.allocation.pattern is ORDERED
    assert found.allocation.delta == 1 if not noise else 1 <= found.allocation.delta <= 3


async def _udp_socket() -> trio.socket.SocketType:
    return trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)


@pytest.mark.seeds(10)
@pytest.mark.parametrize("kind", ["linux-drop", "full-cone", "address-restricted", "apdm-apdf"])
async def test_lossy_links(world: World, kind: str) -> None:
    byte_stream = PipeSpec(delay=0.02, loss=0.1)
    node = behind(world, kind, link=LinkSpec(byte_stream, byte_stream))
    found = await kind_of(world, node, volunteers(world, 4))
    assert seen(found) == TRUTH[kind]


# Hostile observers and strangers.


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", TRUTH)
async def test_one_liar_of_three_changes_nothing(world: World, kind: str, place: int) -> None:
    """It lies about what it sees and never dials back, whether it is asked first or last."""
    asked = [
        (Liar if number == place else Volunteer)(world.host(f"observer{number}"))
        for number in range(3)
    ]
    found = await kind_of(world, behind(world, kind), asked)
    assert seen(found) == TRUTH[kind]
    if not found.mapping.symmetric:
        assert found.dissenters == (asked[place].observer.peer,)
        assert found.public_ip is not None


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("mapping", ["ei", "ad", "apd"])
async def test_one_liar_does_not_hide_a_counting_nat(
    world: World, mapping: str, place: int
) -> None:
    asked = [
        (Liar if number == place else Volunteer)(world.host(f"observer{number}"))
        for number in range(3)
    ]
    node = behind(world, f"{mapping}m-apdf", ports="sequential")
    found = await kind_of(world, node, asked)
    assert (found.mapping, found.filtering) == (BY_LETTERS[mapping], APD)
    assert found.allocation.pattern is ORDERED


async def test_two_liars_of_three_win(world: World) -> None:
    """Twin: the majority is what makes a single liar harmless."""
    asked = [Volunteer(world.host("honest")), *volunteers(world, 2, Liar)]
    found = await kind_of(world, behind(world, "linux-drop"), asked)
    assert found.dissenters == (asked[0].observer.peer,)


class Same(Volunteer):
    """Dials back from the port that was asked, which passes every NAT."""

    async def send_back(self, request: NatRequest) -> bool:
        message = StunMessage(MessageClass.INDICATION, bytes(12), nonce=request.nonce)
        return self.sockets[0].send(stun.encode(message), request.place)


async def test_a_dial_back_from_where_it_was_asked_proves_nothing(world: World) -> None:
    found = await kind_of(world, behind(world, "linux-drop"), volunteers(world, 2, Same))
    assert found.filtering is APD


async def test_a_forgery_counts_without_the_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classifier, "_passes_anew", lambda *_: True)
    found = await kind_of(world, behind(world, "linux-drop"), volunteers(world, 2, Same))
    assert found.filtering is not APD


def asked_once(observers: int = 3) -> tuple[Classifier, list[NatProbe]]:
    """A classifier that has sent every first request."""
    told = [Observer(PeerId(str(n)), f"11.{n}.0.1", (1, 2)) for n in range(observers)]
    numbers = iter(range(1000))
    core = Classifier(
        told, [5, 6, 7, 8], ["10.0.0.2"], entropy=lambda size: next(numbers).to_bytes(size), now=0.0
    )
    return core, [deed for deed in core.poll(0.35) if isinstance(deed, NatProbe)]


def answer_to(ask: NatProbe, mapped: tuple[str, int] | None, **changes: Any) -> bytes:
    message = stun.decode(ask.data)
    assert message is not None
    return stun.encode(
        replace(StunMessage(MessageClass.SUCCESS, message.transaction, mapped), **changes)
    )


FALSE = "66.66.66.66", 666


def forge(core: Classifier, asks: list[NatProbe]) -> None:
    """Send what an off-path attacker can, with guessed or known transaction ids."""
    for ask in asks:
        core.on_datagram(ask.socket, answer_to(ask, FALSE), ("66.66.66.66", ask.to[1]))
        core.on_datagram(ask.socket, answer_to(ask, FALSE), (ask.to[0], ask.to[1] + 7))
        core.on_datagram((ask.socket + 1) % 4, answer_to(ask, FALSE), ask.to)
        core.on_datagram(ask.socket, answer_to(ask, FALSE, transaction=b"x" * 12), ask.to)
        core.on_datagram(ask.socket, answer_to(ask, FALSE, kind=MessageClass.REQUEST), ask.to)
        core.on_datagram(ask.socket, answer_to(ask, None), ask.to)
        core.on_datagram(ask.socket, answer_to(ask, FALSE)[:-1], ask.to)


def test_forged_replies_do_not_count() -> None:
    core, asks = asked_once()
    forge(core, asks)
    assert core.result().answered == 0


def test_forged_replies_count_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classifier, "_is_from", lambda *_: True)
    core, asks = asked_once()
    forge(core, asks)
    assert core.result().public_ip == FALSE[0]


def test_only_the_first_reply_counts() -> None:
    core, asks = asked_once()
    for ask in asks:
        core.on_datagram(ask.socket, answer_to(ask, ("1.2.3.4", 9)), ask.to)
        core.on_datagram(ask.socket, answer_to(ask, FALSE), ask.to)
    assert core.result().public_ip == "1.2.3.4"


def test_an_unsolicited_dial_back_does_not_count() -> None:
    core, asks = asked_once()
    for ask in asks:
        core.on_datagram(ask.socket, answer_to(ask, ("1.2.3.4", 9)), ask.to)
    requests = [deed for deed in core.poll(0.4) if isinstance(deed, NatRequest)]
    assert len(requests) == 3 + 3  # three known peers, and a stranger for each other socket
    for request in requests:
        core.on_sent(request.nonce, 1.0, sent=True)
        for nonce in b"?" * 16, b"", request.nonce + b"!":
            data = stun.encode(StunMessage(MessageClass.INDICATION, bytes(12), nonce=nonce))
            core.on_datagram(0, data, ("99.0.0.1", 5))
    assert not core.done
    core.poll(core.wake_at)
    assert core.done
    assert core.result().filtering is APD


def test_observers_count_by_address() -> None:
    """A hundred peers at one address count as one observer."""
    told = [Observer(PeerId(str(n)), "11.0.0.1", (n,)) for n in range(1, 100)]
    core = Classifier(told, [5, 6, 7, 8], [], entropy=bytes, now=0.0)
    assert core.result().asked == 1


def test_the_number_of_observers_is_bounded() -> None:
    core, asks = asked_once(50)
    assert core.result().asked == defaults.OBSERVERS
    assert len(asks) == 2 * defaults.OBSERVERS + 3
    assert max(len(ask.data) for ask in asks) <= 68
