"""Gateways of the kernel backend: their timers, their LAN."""

import pytest

from shoal.netsim.netns.backend import KernelWorld
from shoal.netsim.netns.gateway import KernelGateway, conntrack_timers
from shoal.netsim.netns.namespaces import Namespaces


def test_timers_have_the_kernels_names() -> None:
    assert conntrack_timers({"udp_new": 30.0, "udp_stream": 120.0}) == {
        "net.netfilter.nf_conntrack_udp_timeout": 30,
        "net.netfilter.nf_conntrack_udp_timeout_stream": 120,
    }


def test_a_timer_that_conntrack_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no timer `icmp_idle` .it has udp_new"):
        conntrack_timers({"icmp_idle": 1.0})


def test_hosts_of_a_lan_reach_each_other_without_the_rules(kernel: None) -> None:
    with Namespaces() as spaces:
        gate = KernelGateway(spaces, "gate", "linux-drop", "11.0.1.1")
        gate.guard()
        found = []
        for name in "a", "b":
            space = spaces.add(name)
            address = gate.free_address()
            gate.join(space, "eth0", address)
            found.append((space, address))
        (a, _), (b, there) = found
        assert (gate.inner, there) == ("192.168.1.1", "192.168.1.3")
        with a.socket() as one, b.socket() as two:
            two.bind((there, 7))
            two.settimeout(2)
            one.sendto(b"hello", (there, 7))
            assert two.recvfrom(10) == (b"hello", ("192.168.1.2", one.getsockname()[1]))


@pytest.mark.parametrize("kind", ["linux-drop", "full-cone"])
def test_a_reboot_forgets_mappings(kernel: None, kind: str) -> None:
    with KernelWorld() as world:
        public, gate = world.host("public"), world.gateway("gate", kind)
        alice = world.host("alice", behind="gate")
        with public.space.socket() as server, alice.space.socket() as client:
            server.bind((public.address, 7))
            server.settimeout(2)
            client.settimeout(0.2)
            client.sendto(b"?", (public.address, 7))
            seen = server.recvfrom(10)[1]
            server.sendto(b"!", seen)
            assert client.recvfrom(10)[0] == b"!"  # the twin: before the reboot, it passes
            gate.reboot()
            server.sendto(b"!", seen)
            with pytest.raises(TimeoutError):
                client.recvfrom(10)
            client.sendto(b"?", (public.address, 7))
            server.recvfrom(10)
