"""This node's own `group` feed, as what it says to its group is written there."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from ..errors import FeedFull

Changes = Mapping[str, Mapping[str, Any] | None]
"""Facts by their keys; None: that one goes."""


class OwnFeed(Protocol):
    """What a writer does for it."""

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        """Raises FeedFull."""
        ...

    def keys(self, kind: str) -> Collection[str]: ...

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None: ...


def say(own: OwnFeed, changes: Changes) -> None:
    """All of these facts, or none of them. Raises FeedFull."""
    before = {key: own.get("group", key) for key in changes}
    try:
        _put(own, changes)
    except FeedFull:
        _put(own, before)
        raise


def _put(own: OwnFeed, changes: Changes) -> None:
    """What goes makes room for the rest."""
    for key in changes:
        own.set("group", key, None)
    for key, value in changes.items():
        if value is not None:
            own.set("group", key, value)
