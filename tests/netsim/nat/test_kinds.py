"""Kinds and knobs by name."""

from typing import Any

import pytest

from shoal.netsim.nat.kinds import KINDS, knobs_of
from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.world import World
from tests.netsim.nat.wire import A2, INSIDE, TCP, UDP, A, Wire, flag


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_built_and_passes_something_out(kind: str) -> None:
    world = World()
    gate = world.gateway("gate", kind)
    assert world.gateways["gate"] is gate
    assert "prefix" in knobs_of(kind)


def test_kinds_with_a_twin_in_the_kernel_are_known() -> None:
    assert set(probes.KINDS) <= set(KINDS)


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no gateway of kind `linux-dorp` .*`linux-drop`"):
        World().gateway("gate", "linux-dorp")
    with pytest.raises(ValueError, match="known are `address-restricted`"):
        World().gateway("gate", "zzz")


def test_unknown_knob_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"kind `cgn` has no `maping` .*`mapping`"):
        World().gateway("gate", "cgn", maping="ei")


@pytest.mark.parametrize(
    ("kind", "knobs"),
    [
        ("linux-drop", {"input": "maybe"}),
        ("linux-drop", {"overlay": "cone"}),
        ("eim-eif", {"mapping": "eim"}),
        ("eim-eif", {"ports": "low"}),
        ("cgn", {"block_size": 0}),
        ("cgn", {"udp_new": -1}),
        ("linux-drop", {"igd": "upnp,magic"}),
        ("public-firewall", {"igd": True}),
        ("linux-drop", {"blocked": "quietly"}),
    ],
)
def test_bad_value_is_refused(kind: str, knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        World().gateway("gate", kind, **knobs)


def test_single_timers_leave_the_others() -> None:
    wire = Wire("cgn", ("100.64.0.2",), udp_stream=50.0)
    outer = wire.out(("100.64.0.2", 1), A)
    assert outer is not None
    assert wire.at(34.9).back(A, outer) is not None  # udp_new is the kind's own
    assert wire.at(34.9 + 49.9).back(A, outer) is not None
    assert wire.at(34.9 + 49.9 + 50.0).back(A, outer) is None


def test_blocked_udp_lets_the_web_out() -> None:
    wire = Wire("udp-blocked")
    assert wire.out(INSIDE, A) is None
    assert wire.out(INSIDE, (A[0], 443), proto=UDP) is None
    assert wire.out(INSIDE, (A[0], 53), proto=UDP) is not None
    assert wire.out(INSIDE, (A[0], 443), flag("syn"), TCP) is not None
    assert wire.out(INSIDE, (A2[0], 8443), flag("syn"), TCP) is None


def test_no_network_says_so() -> None:
    wire = Wire("no-network")
    told = wire.inward(INSIDE, (A[0], 443), flag("syn"), TCP)
    assert told is not None and told.icmp.kind == "admin"
