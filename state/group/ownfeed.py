"""Interface to this node's own `group` feed, and atomic changes to it."""

from collections.abc import Collection, Mapping
from typing import Protocol

from ..errors import FeedFull

Changes = Mapping[str, Mapping[str, object] | None]
"""Facts by key; None deletes a fact."""


class OwnFeed(Protocol):
    """The methods through which this node's own feeds are read and written; `State` has them."""

    def set(self, kind: str, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact, or delete it if `value` is None.

        Raises FeedFull if the feed cannot take the fact.
        """
        ...

    def keys(self, kind: str) -> Collection[str]: ...

    def get(self, kind: str, key: str) -> Mapping[str, object] | None: ...


def say(own: OwnFeed, changes: Changes) -> None:
    """Write all of these facts, or none of them. Raises FeedFull if they do not fit."""
    before = {key: own.get("group", key) for key in changes}
    try:
        _put(own, changes)
    except FeedFull:
        _put(own, before)
        raise


def _put(own: OwnFeed, changes: Changes) -> None:
    """Set or delete facts. All keys are deleted first, so that the new facts fit."""
    for key in changes:
        own.set("group", key, None)
    for key, value in changes.items():
        if value is not None:
            own.set("group", key, value)
