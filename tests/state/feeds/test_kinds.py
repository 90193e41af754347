"""The list of kinds is complete, and its limits are consistent."""

import re
from pathlib import Path

import pytest

from shoal.state import defaults
from shoal.state.feeds.kinds import KINDS, FeedKind, all_parts, part_of_root


def test_all_parts_lists_every_feed() -> None:
    feeds = list(all_parts())
    assert len(feeds) == len(set(feeds)) == len(KINDS) - 1 + defaults.PARTS
    assert {part for kind, part in feeds if kind == "shards"} == set(range(16))
    assert {part for kind, part in feeds if kind != "shards"} == {0}


def test_models_spread_over_the_parts() -> None:
    assert [part_of_root(digit + "0" * 63) for digit in "09af"] == [0, 9, 10, 15]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_snapshot_leaves_room_for_updates(kind: FeedKind) -> None:
    """Otherwise an author could never change a full feed again."""
    assert kind.live_bytes + kind.update_bytes <= kind.epoch_bytes
    assert kind.live_bytes + 2 * defaults.ENTRY_HEADER_BYTES < kind.epoch_bytes
    assert kind.live_bytes <= defaults.SNAPSHOT_BYTES
    assert kind.update_bytes <= defaults.UPDATE_BYTES
    assert kind.entries > 1


def test_all_feeds_of_one_author_are_bounded() -> None:
    most = sum(KINDS[name].epoch_bytes for name, _ in all_parts())
    assert most < 4 * 2**20


def test_the_spec_lists_the_same_limits() -> None:
    spec = Path(__file__).resolve().parents[3] / "docs" / "spec" / "state.md"
    rows = re.findall(
        r"^\| `(\w+)` \| (yes)? ?\| ([^|]+) \| (\d+) \| (\d+) \| ([^|]+) \|$",
        spec.read_text(),
        re.MULTILINE,
    )
    told = {
        (name, bool(parted), *(int(number.replace(",", "")) for number in numbers))
        for name, parted, *numbers in rows
    }
    assert told == {
        (k.name, k.parted, k.epoch_bytes >> 10, k.live_bytes >> 10, k.update_bytes >> 10, k.keys)
        for k in KINDS.values()
    }
