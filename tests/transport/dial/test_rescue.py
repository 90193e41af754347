"""The pace of searches for paths while many links of a node have none."""

from types import SimpleNamespace
from typing import Any

from shoal.transport.dial.rescue import times


def link(*, needed: bool = False) -> Any:
    return SimpleNamespace(needed=needed)


def test_many_links_share_the_pace_of_one() -> None:
    assert [times(link(), searches) for searches in (0, 1, 10)] == [1.0, 1.0, 10.0]


def test_a_needed_link_does_not_wait_for_others() -> None:
    assert times(link(needed=True), 10) == 1.0
