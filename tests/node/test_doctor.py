"""The operations `doctor`, `links` and `status` of whole daemons in the simulator."""

from typing import Any

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.world import World
from shoal.transport.strategies.dialer import Strategies


async def simulated_nodes(world: World, *nats: str, **settings: Any) -> list[DaemonHandle]:
    """Three public nodes that relay, and one home behind each NAT."""
    nodes: list[DaemonHandle] = []
    for number in range(3):
        public = Daemon(bootstrap=nodes[:1], engine=False, relay=1_000_000)
        nodes.append(await world.host(f"public{number}").start(public))
    for number, nat in enumerate(nats):
        home = Daemon(bootstrap=nodes[:1], engine=False, **settings)
        gateway = world.gateway(f"router{number}", nat)
        nodes.append(await world.host(f"home{number}", behind=gateway).start(home))
    return nodes


def codes(answer: dict[str, Any]) -> set[str]:
    return {each["code"] for each in answer["findings"]}


async def test_doctor_waits_for_a_first_measurement(world: World) -> None:
    *_, home = await simulated_nodes(world, "linux-drop")
    began = trio.current_time()
    answer = await home.ask("doctor")
    assert 1 < trio.current_time() - began < 25
    assert answer["measured_s"] < 1 and answer["observers"] == 3
    assert {"nat-easy", "no-map", "strategy-relay"} <= codes(answer)
    began = trio.current_time()
    answer = await home.ask("doctor")
    assert trio.current_time() - began < 0.1, "the last measurement is used"
    await home.ask("doctor", again=True)
    assert trio.current_time() - began > 1


async def test_doctor_does_not_wait_without_links(world: World) -> None:
    alone = await world.host("alone").start(Daemon(engine=False))
    began = trio.current_time()
    answer = await alone.ask("doctor")
    assert trio.current_time() - began < 6, "a peer may still link while the node starts"
    assert answer["verdict"]["code"] == "alone" and answer["measured_s"] is None
    began = trio.current_time()
    await alone.ask("doctor", again=True)
    assert trio.current_time() - began < 0.1


async def test_status_and_links_of_two_nodes_without_a_direct_path(world: World) -> None:
    public, _, _, one, other = await simulated_nodes(world, *["linux-fully-random"] * 2)
    await trio.sleep(60)
    status = await one.ask("status")
    assert status["reach"]["code"] == "relayed"
    assert status["relays"][0]["peer"] == public.peer
    assert status["relaying"]["on"] is False and status["health"] == []
    carried = (await public.ask("status"))["relaying"]
    assert carried["places"] >= 2 and carried["bytes"] > 0 and carried["rate"] == 1_000_000
    began = trio.current_time()
    links = {link["peer"]: link for link in (await one.ask("links"))["links"]}
    assert 0.9 < trio.current_time() - began < 1.5
    assert links[public.peer]["path"] == "direct" and links[public.peer]["why_relayed"] is None
    relayed = links[other.peer]
    assert (relayed["path"], relayed["medium"]) == ("relayed", "circuit")
    assert "no direct path is possible" in relayed["why_relayed"]
    assert relayed["rtt_ms"] > links[public.peer]["rtt_ms"] and relayed["rate_in"] is not None
    peers = {peer["peer"]: peer["path"] for peer in (await one.ask("peers"))["peers"]}
    assert peers[other.peer] == "relayed"


async def test_strategies_switched_off_are_shown(world: World) -> None:
    strategies = Strategies(udp=False, lan=False, mapping=False)
    *_, home = await simulated_nodes(world, "linux-drop", strategies=strategies)
    answer = await home.ask("doctor")
    said = {each["code"]: each["sentence"] for each in answer["findings"]}
    for code, flag in (("lan", "lan"), ("mapped", "port-mapping"), ("udp-punch", "udp")):
        assert said[f"strategy-{code}"].endswith(f"(`--no-{flag}`)")
    assert not codes(answer) & {"no-map", "port-mapping", "no-udp-port"}


async def test_two_nodes_on_one_network_are_lan_only(world: World) -> None:
    gateway = world.gateway("router", "linux-drop")
    first, second = (world.host(name, behind=gateway) for name in ("desk", "sofa"))
    desk = await first.start(Daemon(engine=False))
    await second.start(Daemon(engine=False))
    await trio.sleep(30)  # they find each other by multicast
    answer = await desk.ask("doctor")
    assert answer["verdict"]["code"] == "lan-only" and "no-relay" not in codes(answer)
    (link,) = (await desk.ask("links"))["links"]
    assert link["path"] == "lan"


async def test_port_443_uses_the_listen_address(world: World) -> None:
    everywhere = await world.host("all").start(Daemon(engine=False, port_443=True))
    assert ("0.0.0.0", 443) in everywhere.node.endpoint.listening
    local = await world.host("one").start(Daemon(engine=False, port_443=True, listen="127.0.0.1"))
    assert local.node.endpoint.listening == [("127.0.0.1", 4001), ("127.0.0.1", 443)]
