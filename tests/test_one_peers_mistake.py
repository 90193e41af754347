"""An error of ours in the handling of one peer, injected into every place that handles peers: the
daemons survive, the links come back, and the condition names it. Without the guard each error ends
one.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.world import World
from shoal.node.daemon.mishaps import CONDITION, Mishaps
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import DialFailed
from shoal.transport.guard import Guard, Mishap
from tests.transport.homes import Street

PLACES = [
    "transport.dial.accepting Accepting._greet_lane",
    "transport.dial.direct Direct.dial",
    "transport.dial.attempts ConnectionAttempts._run",
    "transport.strategies.dialer Dialer._path_found",
    "transport.strategies.dialer Dialer._observed",
    "transport.strategies.dialer Dialer._stun",
    "transport.link.link Link._take_in",
    "transport.link.link Link.tick",
    "transport.link.link Link.expire",
    "transport.link.link Link._on_called",
    "transport.udp.connection UdpConnection.receive",
    "transport.udp.connection UdpConnection.transmit",
    "transport.udp.connection UdpConnection.expire",
    "transport.udp.gate FirstPacketGate.admit",
    "transport.udp.port UdpPort._accepted",
    "transport.lan.responder MdnsResponder.receive",
    "transport.lan.responder MdnsResponder.poll",
    "transport.lan.linking Neighbourhood._meet",
    "transport.lan.linking Neighbourhood._dial",
    "transport.nat.portmap.portcontrol PortControl._take",
    "transport.nat.portmap.igdclient IgdClient.probe",
    "transport.nat.reach.linkedpeers LinkedPeers._ask",
    "transport.nat.reach.looking Looker._ask",
    "transport.nat.reach.measuring Measurement.classify",
    "transport.nat.reach.volunteer ReachVolunteer.answer",
    "dht.lookup.joining Joining.on_linked",
    "dht.lookup.joining Joining._probe_in_slot",
    "dht.lookup.searching Searching._ask",
    "dht.publishing.publishing Publishing._store",
    "dht.kademlia.answering DhtHandlers.on_find",
    "state.membership.membership Membership._link_up",
    "state.membership.membership Membership._link_lost",
    "state.membership.memberdialer MemberDialer._dial",
    "state.membership.membership Membership._take",
    "state.membership.probing Probing.check",
    "state.replication.replication Replication._link_up",
    "state.replication.replication Replication._pull",
    "state.replication.replication Replication._compare",
    "state.replication.replication Replication._on_news",
]
WALK = "dht.publishing.publishing Publishing._walk"  # only a node that has contacts walks
LOOPS = [  # of the node's own, which read what many peers say
    "transport.strategies.dialer Dialer._improve_relayed",
    "transport.nat.reach.service Reach._watch_links",
    "dht.kademlia.brieflinks BriefLinks.sweep",
    "dht.lookup.joining Joining._probe_queued",
    "dht.lookup.joining Joining._keep_fresh",
    "dht.lookup.joining Joining._rest",
    WALK,
    "dht.publishing.publishing Publishing._pause",
    "dht.service Dht._servers",
    "node.swarm.remembering Remembering.write",
    "state.membership.membership Membership._reclaim",
    "state.membership.probing Probing._let_rest",
    "state.replication.authors Authors.linked",
    "state.replication.authors Authors.vouchers",
    "state.replication.exchange FeedExchange.tell",
    "state.replication.replication Replication._account_links",
    "state.replication.replication Replication._refill",
    "state.views.members Members.get",
    "state.vouching Vouching._is_lonely",
    "tasks.jobs.collecting Collector._watch",
    "tasks.jobs.collecting Collector._tidy",
]
WITHIN = [  # those that others of the list call
    "dht.lookup.joining Joining._rest",
    "state.replication.authors Authors.linked",
    "state.replication.authors Authors.vouchers",
    "state.replication.exchange FeedExchange.tell",
]


def faults(monkeypatch: pytest.MonkeyPatch, places: list[str]) -> set[str]:
    """Let the first call of each function raise an error of its own; return the set of those not
    called yet.
    """
    left = set[str]()
    for place in places:
        module, name = place.split()
        owner, _, method = name.rpartition(".")
        where = getattr(import_module(f"shoal.{module}"), owner)
        break_once(monkeypatch, where, method, name, left)
    return left


def break_always(monkeypatch: pytest.MonkeyPatch, places: list[str]) -> Counter[str]:
    """Let every call of each function raise an error of its own; return the numbers of calls."""
    calls = Counter[str]()
    for place in places:
        module, name = place.split()
        owner, _, method = name.rpartition(".")
        where = getattr(import_module(f"shoal.{module}"), owner)
        fault = type(name.replace(".", "_"), (Exception,), {})

        def fail(*_args: Any, fault: type[Exception] = fault, **_more: Any) -> Any:
            calls[fault.__name__] += 1
            raise fault

        monkeypatch.setattr(where, method, fail)
    return calls


def break_once(
    monkeypatch: pytest.MonkeyPatch, where: Any, method: str, name: str, left: set[str]
) -> None:
    real: Callable[..., Any] = getattr(where, method)
    fault = type(name.replace(".", "_"), (Exception,), {})
    left.add(fault.__name__)

    def called() -> None:
        if fault.__name__ in left:
            left.discard(fault.__name__)
            raise fault

    if iscoroutinefunction(real):

        async def wait(*args: Any, **more: Any) -> Any:
            called()
            return await real(*args, **more)

        monkeypatch.setattr(where, method, wait)
    else:

        def run(*args: Any, **more: Any) -> Any:
            called()
            return real(*args, **more)

        monkeypatch.setattr(where, method, run)


async def three(world: World, **settings: Any) -> list[DaemonHandle]:
    """Start a public node, and two on one home's network, whose router forwards ports."""
    home = world.gateway("home", igd=True)
    one = await world.host("public").start(Daemon(engine=False, **settings))
    settings["bootstrap"] = [one]
    desk, sofa = world.host("desk", behind=home), world.host("sofa", behind=home)
    return [
        one,
        await desk.start(Daemon(engine=False, **settings)),
        await sofa.start(Daemon(engine=False, **settings)),
    ]


async def over_udp(one: DaemonHandle, other: DaemonHandle) -> None:
    """Add a path over UDP to a link that TCP carries."""
    with suppress(DialFailed):
        address = other.address
        await one.node.dialer.direct.dial_place((address.host, address.port), other.peer)


async def test_the_daemons_live(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left = faults(monkeypatch, PLACES)
    told, add = list[Mishap](), Mishaps.add

    def note(mishaps: Mishaps, mishap: Mishap) -> None:
        told.append(mishap)
        add(mishaps, mishap)

    monkeypatch.setattr(Mishaps, "add", note)
    nodes = await three(world, loud=False)
    await trio.sleep(60)
    for _ in range(8):
        await nodes[1].host.run(over_udp, nodes[1], nodes[0])
    await trio.sleep(60)
    assert not left, f"these were never called: {left}"
    names = {each.error for each in told}
    everywhere = {place.split()[1].replace(".", "_") for place in PLACES}
    assert everywhere <= names, everywhere - names
    for each in nodes:
        status = await each.status()
        assert [each["name"] for each in status["health"]] == [CONDITION]
        assert status["peers"] == 2


async def test_loops_go_on_after_a_bug(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left = faults(monkeypatch, LOOPS)
    nodes = await three(world, loud=False)
    await trio.sleep(120)
    assert not left, f"these were never called: {left}"
    for each in nodes:
        status = await each.status()
        assert [each["name"] for each in status["health"]] in ([], [CONDITION])
        assert status["peers"] == 2


@pytest.mark.parametrize(
    "places", [WITHIN, [WALK], [each for each in LOOPS if each not in (*WITHIN, WALK)]]
)
async def test_a_bug_that_stays_does_not_spin(
    world: World, monkeypatch: pytest.MonkeyPatch, places: list[str]
) -> None:
    with monkeypatch.context() as broken:
        calls = break_always(broken, places)
        nodes = await three(world, loud=False)
        await trio.sleep(120)
    everywhere = {place.split()[1].replace(".", "_") for place in places}
    assert calls.keys() == everywhere
    most = len(nodes) * 120  # one call of each node a second
    assert {name: count for name, count in calls.items() if count > most} == {}
    for each in nodes:
        assert CONDITION in [each["name"] for each in (await each.status())["health"]]


@pytest.mark.parametrize(
    "place", ["transport.link.link Link.tick", "state.membership.probing Probing.check"]
)
def test_without_the_guard_one_of_them_ends_a_daemon(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    left = faults(monkeypatch, [place])
    world = World(seed=1)

    async def main() -> None:
        await three(world)
        await trio.sleep(60)

    with pytest.raises((Exception, BaseExceptionGroup)) as failed:
        world.run(main)
    assert not left and place.split()[1].replace(".", "_") in repr(failed.value)


BETWEEN_HOMES = [
    "transport.strategies.circuits Circuits.dial",
    "transport.strategies.circuits Circuits.take",
    "transport.nat.punch.improving Improving._run",
    "transport.relay.families Families.meet",
    "transport.nat.punch.attempt PunchAttempt.run",
    "transport.nat.punch.attempt PunchAttempt.begin",
    "transport.nat.punch.checks Checks.receive",
    "transport.relay.client RelayClient._on_accept",
    "transport.relay.client RelayClient._tend",
    "transport.relay.survey Survey._ask",
    "transport.relay.book RelayBook.reserve",
]


async def test_homes_meet_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The homes use relays, circuits and punching."""
    left, told = faults(monkeypatch, BETWEEN_HOMES), list[Mishap]()
    begin = Guard.__init__

    def reporting(guard: Guard, _report: object = None, *more: Any) -> None:
        begin(guard, told.append, *more)

    monkeypatch.setattr(Guard, "__init__", reporting)
    street = Street(world)
    await street.relays()
    a, b = await street.home("a", "linux-drop"), await street.home("b", "linux-drop")
    await street.settle(a, b)
    for _ in range(20):
        with suppress(DialFailed):
            await a.connect(b.peer)
        await trio.sleep(5)
        link = a.endpoint.link(b.peer)
        if not left and link is not None and link.path_kind is PathKind.PUNCHED:
            break
    assert not left, f"these were never called: {left}"
    put_in = {place.split()[1].replace(".", "_") for place in BETWEEN_HOMES}
    # trio's own: the starter of the attempt learns that it ended before it had started.
    assert put_in <= {each.error for each in told} <= put_in | {"RuntimeError"}
    link = a.endpoint.link(b.peer)
    assert link is not None and link.path_kind is PathKind.PUNCHED
