"""The simulated NATs give the same result for every probe as the real kernel's
(`golden/linux.json`).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.nat.probes.lab import SimLab

GOLDEN = Path(probes.__file__).parent / "golden" / "linux.json"
TABLE: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())["kinds"]


def differences(kind: str, golden: dict[str, Any], **knobs: Any) -> dict[str, tuple[Any, Any]]:
    """Return the probes with different results: simulated, golden."""
    found = SimLab(kind, **knobs).run()
    names = found.keys() | golden.keys()
    pairs = {name: (found.get(name, "absent"), golden.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def test_every_kind_has_a_table() -> None:
    assert set(TABLE) == set(probes.KINDS)


@pytest.mark.parametrize("kind", probes.KINDS)
def test_simulated_nat_equals_kernel(kind: str) -> None:
    assert differences(kind, TABLE[kind]) == {}


@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_hangs_on_the_seed(seed: int) -> None:
    assert differences("linux-random", TABLE["linux-random"], seed=seed) == {}


@pytest.mark.parametrize(
    ("kind", "knobs", "probe"),
    [
        ("linux-drop", {"input": "accept"}, "udp.race.port_kept"),
        ("linux-drop", {"input": "reject"}, "tcp.unsolicited.unmapped"),
        ("linux-drop", {"source": "random"}, "udp.mapping"),
        ("linux-drop", {"udp_new": 4.0}, "udp.timer.unreplied_3s"),
        ("linux-drop", {"udp_stream": 2.0}, "udp.timer.stream_3s"),
        ("full-cone", {"overlay": "address-restricted"}, "udp.filtering"),
        ("full-cone-hairpin", {"hairpin": "off"}, "udp.hairpin"),
    ],
)
def test_a_wrong_nat_differs(kind: str, knobs: dict[str, Any], probe: str) -> None:
    assert probe in differences(kind, TABLE[kind], **knobs)
