"""Real daemons in namespaces, behind real NATs, over user-space links."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from shoal.netsim.errors import SimError
from shoal.netsim.netns import backend
from shoal.netsim.netns.backend import KernelWorld
from shoal.netsim.netns.namespaces import KernelRefused
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World

SLOW = LinkSpec(PipeSpec(delay=0.02), PipeSpec(delay=0.02))


def test_without_a_kernel_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "available", lambda: "the kernel backend needs root")
    with pytest.raises(KernelRefused, match="needs root"):
        KernelWorld()


def test_addresses_are_the_simulators(kernel: None) -> None:
    world = World()
    home = world.gateway("home", "router")
    simulated = [world.host("a"), world.host("b", behind=home), world.host("c", behind=home)]
    with KernelWorld() as real:
        real.gateway("home")
        hosts = [real.host("a"), real.host("b", behind="home"), real.host("c", behind="home")]
        assert [host.address for host in hosts] == [host.addresses()[0] for host in simulated]
        assert real.gateways["home"].address == home.wan.addresses[0]


def test_a_host_behind_two_gateways_is_seen_as_the_outer_one(kernel: None) -> None:
    with KernelWorld() as world:
        public = world.host("public")
        outer = world.gateway("carrier", "full-cone")
        world.gateway("home", behind="carrier")
        alice = world.host("alice", behind="home")
        with public.space.socket() as server, alice.space.socket() as client:
            server.bind((public.address, 7))
            server.settimeout(2)
            client.sendto(b"?", (public.address, 7))
            assert server.recvfrom(10)[1][0] == outer.address


def test_impossible_worlds_are_refused(kernel: None) -> None:
    with KernelWorld() as world:
        world.gateway("home")
        with pytest.raises(SimError, match="alice is behind `home` and shares its link"):
            world.host("alice", behind="home", link=SLOW)
        with pytest.raises(SimError, match="`home` already exists"):
            world.host("home")
        with pytest.raises(ValueError, match="no gateway of kind `cisco`"):
            world.gateway("office", "cisco")


def test_a_daemon_that_ends_is_quoted(kernel: None) -> None:
    with KernelWorld() as world:
        world.host("a")
        world.start("a", "--layers", "nonsense")
        with pytest.raises(SimError, match="a already runs a daemon"):
            world.start("a")
        with pytest.raises(KernelRefused, match=r"daemon on a has ended; it said: .*nonsense"):
            world.wait(lambda: world.status("a") is not None)
        folder = world.folder
    assert not folder.exists()


def test_a_link_of_the_internet_changes_and_is_cut(kernel: None) -> None:
    with KernelWorld() as world:
        a, b = world.host("a"), world.host("b")
        with a.space.socket() as one, b.space.socket() as two:
            two.bind((b.address, 7))
            two.settimeout(2)
            world.change("a", LinkSpec(PipeSpec(delay=0.05)))
            began = time.monotonic()
            one.sendto(b"?", (b.address, 7))
            two.recvfrom(10)
            assert time.monotonic() - began >= 0.05
            world.cut("b", up=False)
            one.sendto(b"?", (b.address, 7))
            two.settimeout(0.1)
            with pytest.raises(TimeoutError):
                two.recvfrom(10)
        with pytest.raises(KernelRefused, match="no port `nobody/eth0`"):
            world.cut("nobody")


def round_trip_known(world: KernelWorld, name: str, peer: str) -> bool:
    return any(p["rtt_ms"] is not None for p in world.peers(name) if p["peer"] == peer)


@pytest.mark.ci
def test_two_behind_nats_join_by_a_public_one(kernel: None) -> None:
    with KernelWorld() as world:
        world.host("public")
        for number, name in enumerate(("alice", "bob")):
            world.gateway(f"home-{number}", "linux-drop", link=SLOW)
            world.host(name, behind=f"home-{number}")
        world.start("public")
        world.wait(lambda: world.status("public") is not None)
        for name in "alice", "bob":
            world.start(name, "--bootstrap", world.where("public"))
        world.wait(lambda: len(world.peers("public")) == 2, what="that both joined")
        me = (world.status("public") or {})["peer"]
        for name in "alice", "bob":
            rtts: list[float] = []
            deadline = time.monotonic() + 120
            while not rtts or rtts[-1] > 46:  # on a busy machine, a later one is better
                world.wait(partial(round_trip_known, world, name, me))
                rtts += [peer["rtt_ms"] for peer in world.peers(name) if peer["peer"] == me]
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert rtts[-1] >= 40.0
        seen = {peer["address"].split(":")[0] for peer in world.peers("public")}
        assert seen == {gate.address for gate in world.gateways.values()}

        world.cut("home-0")  # the twin: without the link there is no member
        world.wait(lambda: len(world.peers("public")) == 1, what="that alice is missed")
        world.cut("home-0", up=False, down=False)
        world.wait(lambda: len(world.peers("public")) == 2, what="that alice is back")
        world.hosts["bob"].crash()
        world.wait(lambda: len(world.peers("public")) == 1, what="that bob is missed")
        world.start("bob", "--bootstrap", world.where("public"))
        world.wait(lambda: len(world.peers("public")) == 2, what="that bob is back")
        pids = [(world.status(name) or {})["pid"] for name in world.hosts]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert os.listdir(world.folder.parent).count(world.folder.name) == 0
