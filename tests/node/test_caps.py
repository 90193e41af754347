"""The owner's bandwidth limits reach the shaper of the node's links."""

from pathlib import Path

import pytest

from shoal.node.settings.applying import caps_of
from shoal.node.settings.config import NodeConfig
from shoal.transport.lane.shaper import Cap, Caps, Shaper


@pytest.mark.parametrize(
    ("up", "down", "caps"),
    [
        (500_000, None, Caps(up=Cap(node=500_000))),
        (None, 2_000_000, Caps(down=Cap(node=2_000_000))),
        (500_000, 2_000_000, Caps(Cap(node=500_000), Cap(node=2_000_000))),
    ],
)
def test_caps_follow_the_settings(up: int | None, down: int | None, caps: Caps) -> None:
    assert caps_of(NodeConfig(Path("/x"), up=up, down=down)) == caps


def test_no_caps_without_settings() -> None:
    assert Shaper(caps_of(NodeConfig(Path("/x"))), 0.0).capped == (False, False)
