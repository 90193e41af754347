"""Steps on a real kernel: which are refused, and that packets are really lost and recover."""

import time

import pytest

from shoal.netsim.netns.backend import KernelWorld
from shoal.netsim.netns.namespaces import available
from shoal.netsim.runs.kernelfaults import KernelFaults, outer_names, why_not
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.format.tables import Scenario

HEAD = """[sim]
name = "x"
duration = "1m"
[[nat]]
id = "carrier"
kind = "linux-drop"
[[nat]]
id = "home"
kind = "linux-drop"
behind = "carrier"
[[host]]
name = "p"
count = 2
[[host]]
name = "own"
nat = "linux-drop"
[[host]]
name = "in"
count = 2
nat = "home"
[[step]]
at = "1s"
"""


def scenario(step: str) -> Scenario:
    return parse(HEAD + step)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ('action = "crash"\ntarget = "in"', ""),
        ('action = "cut"\ntarget = ["carrier", "p"]\nway = "up"', ""),
        ('action = "partition"\ngroups = [["p"], ["in"], ["own"]]', ""),
        ('action = "sleep"\ntarget = "p1"', "has no step `sleep`"),
        ('action = "link.down"\ntarget = "in"', "`in1` has no link of its own"),
        ('action = "link.down"\ntarget = "own"', "`own` has no link of its own"),
        ('action = "link.down"\ntarget = "home"', "`home` has no link of its own"),
        ('action = "partition"\ngroups = [["in1"], ["in2"]]', "`in2` shares a gateway"),
    ],
)
def test_steps_that_a_kernel_cannot_do_are_refused(step: str, says: str) -> None:
    found = scenario(step)
    why = why_not(found.steps[0], found)
    assert says in why and bool(says) is bool(why)


def test_outermost_gateway_of_a_host() -> None:
    found = outer_names(scenario('action = "heal"'))
    assert found == {
        "p1": "p1", "p2": "p2", "own": "own-gateway", "in1": "carrier", "in2": "carrier",
    }  # fmt: skip


def passes(world: KernelWorld, sender: str, receiver: str) -> bool:
    """Whether a datagram from one public host reaches another."""
    one, other = world.hosts[sender], world.hosts[receiver]
    with one.space.socket() as source, other.space.socket() as sink:
        sink.bind((other.address, 7))
        sink.settimeout(0.3)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            source.sendto(b"?", (other.address, 7))
            try:
                sink.recv(10)
            except TimeoutError:
                continue
            return True
    return False


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_partitions_and_cuts_lose_packets_and_end() -> None:
    found = parse("""[sim]
name = "x"
duration = "1m"
[[host]]
name = "p"
count = 3
[[step]]
at = "1s"
action = "partition"
groups = [["p1"], ["p2"]]
oneway = true
for = "1s"
[[step]]
at = "3s"
action = "cut"
target = "p1"
way = "down"
for = "1s"
""")
    with KernelWorld() as world:
        for name in ("p1", "p2", "p3"):
            world.host(name)
        faults = KernelFaults(found, world, lambda name: None)
        assert passes(world, "p1", "p2")
        faults.carry_out(1.0)
        assert not passes(world, "p1", "p2")
        assert passes(world, "p2", "p1") and passes(world, "p1", "p3")
        faults.carry_out(2.0)
        assert passes(world, "p1", "p2")
        faults.carry_out(3.0)
        assert not passes(world, "p2", "p1") and passes(world, "p1", "p2")
        faults.carry_out(4.0)
        assert passes(world, "p2", "p1")
    assert [item.until for item in faults.happenings] == [2.0, 4.0]
