"""The reasons for drops that scenarios know are those that the simulator gives."""

import re
from pathlib import Path

from shoal.netsim import link
from shoal.netsim.scenario.metrics import REASONS

NETSIM = Path(link.__file__).parent


def test_every_reason_is_known() -> None:
    given = set(link.REASONS.values())
    for path in NETSIM.rglob("*.py"):
        if "netns" not in path.parts:
            given |= set(re.findall(r'\.drop\(\s*"([a-z-]+)"', path.read_text()))
    assert given == set(REASONS)
