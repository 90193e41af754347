"""The switch process and its remote control."""

import time
from dataclasses import asdict

import pytest

from shoal.netsim.netns.namespaces import KernelRefused, Namespaces
from shoal.netsim.netns.switch import SwitchProcess, link_spec
from shoal.netsim.network.link import Burst, Cycle, CyclePhase, LinkSpec, PipeSpec

FULL = LinkSpec(
    PipeSpec(0.01, 0.002, 1e6, 0.1, 0.01, Burst(0.1, 0.2, 0.3, 0.01), 0.1, 0.005, 0.01, 1400),
    PipeSpec(
        cycle=Cycle(15.0, (CyclePhase(0.0, 1.0, 0.1, 0.5, True), CyclePhase(14.0, 1.0, 0.05)))
    ),
)


@pytest.mark.parametrize("link", [LinkSpec(), FULL])
def test_a_link_passes_the_control_socket_unchanged(link: LinkSpec) -> None:
    import json

    assert link_spec(json.loads(json.dumps(asdict(link)))) == link


def test_the_process_answers_and_ends_with_its_socket() -> None:
    with SwitchProcess() as switch:
        assert switch.counts()["forwarded"] == 0
        with pytest.raises(KernelRefused, match="no port `nobody/eth0`"):
            switch.cut("nobody/eth0")
        switch.counts()  # it still answers


def test_the_end_of_the_process_is_reported() -> None:
    switch = SwitchProcess()
    switch.counts()
    switch.kill()
    with pytest.raises(KernelRefused, match="the switch process has ended"):
        switch.counts()
    switch.close()


def test_packets_pass_between_namespaces_delayed(kernel: None) -> None:
    with Namespaces() as spaces, SwitchProcess() as switch:
        a, b = spaces.add("a"), spaces.add("b")
        for space, address in (a, "11.0.0.1"), (b, "11.0.0.2"):
            space.sysctl({"net.ipv6.conf.all.disable_ipv6": 1})
            switch.plug(space, "eth0", address, LinkSpec(PipeSpec(delay=0.005)))
        with a.socket() as one, b.socket() as two:
            two.bind(("11.0.0.2", 7))
            two.settimeout(1)
            one.connect(("11.0.0.2", 7))
            began = time.monotonic()
            one.send(b"?")
            two.recvfrom(10)
            assert time.monotonic() - began >= 0.005
            switch.change("a/eth0", LinkSpec(PipeSpec(loss=1.0)))
            one.send(b"?")
            wait_for_drops(switch, {"a/eth0": {"lost": 1}, "b/eth0": {}})
            switch.change("a/eth0", LinkSpec())
            switch.cut("b/eth0", up=False)
            one.send(b"?")
            wait_for_drops(switch, {"a/eth0": {"lost": 1}, "b/eth0": {"cut": 1}})
            assert switch.counts()["forwarded"] == 1


def wait_for_drops(switch: SwitchProcess, wanted: dict[str, dict[str, int]]) -> None:
    deadline = time.monotonic() + 60
    while (dropped := switch.counts()["dropped"]) != wanted:
        assert time.monotonic() < deadline, dropped
        time.sleep(0.002)
