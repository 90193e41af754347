"""What this node's own record says, as facts of its feeds: they reach those it has no link with."""

from collections.abc import Iterator, Mapping
from typing import Any

import trio

from ..state.errors import FeedFull
from ..state.kinds import part_of_root
from ..state.membership import Membership
from ..state.record import MemberRecord
from ..state.service import State
from ..state.views.members import ABOUT, CAPACITY, capacity_fact
from ..state.views.models import model_fact
from ..state.views.placements import shard_fact, shard_key
from . import defaults
from .health import Health

Fact = tuple[str, int, str]
"""Kind, part and key."""


class Stating:
    """Of one node."""

    def __init__(self, state: State, directory: Membership, health: Health) -> None:
        self._state = state
        self._directory = directory
        self._health = health
        self._said: dict[Fact, Mapping[str, Any]] = {}

    async def run(self) -> None:
        """Keep the facts true until cancelled."""
        version = -1
        while True:
            version = await self._directory.changed(version)
            self._say(dict(facts(self._directory.own())))
            if self._state.contested:
                self._health.report(
                    "same-key",
                    "another node with this node's identity was seen",
                    hint="a data folder must run once: stop the copy, or give it another folder",
                )
            await trio.sleep(defaults.SAY_PAUSE)

    def _say(self, wanted: dict[Fact, Mapping[str, Any]]) -> None:
        try:
            for fact in [*self._said.keys() - wanted.keys()]:
                self._set(fact, None)
                del self._said[fact]
            for fact, value in wanted.items():
                before = self._said.get(fact, {})
                if before != value and not _is_busier(before, value):
                    self._set(fact, value)
                    self._said[fact] = value
        except FeedFull as error:
            self._health.report("state", error.message)
        else:
            self._health.clear("state")

    def _set(self, fact: Fact, value: Mapping[str, Any] | None) -> None:
        kind, part, key = fact
        self._state.set(kind, key, value, part=part)


def _is_busier(before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether all that is new is that requests take room for tokens: that goes into no feed."""
    if "tokens" not in before or value["tokens"] > before["tokens"]:
        return False
    return {**value, "tokens": before["tokens"]} == before


def facts(own: MemberRecord) -> Iterator[tuple[Fact, Mapping[str, Any]]]:
    """The facts that a member's own record comes to; what changes with each request is in none."""
    yield ("member", 0, ABOUT), {"version": own.version}
    yield ("member", 0, CAPACITY), capacity_fact(own.capacity)
    for model in own.models:
        if model.name and model.layers:
            yield ("models", 0, model.name), model_fact(model)
    numbers: dict[str, int] = {}
    for shard in own.shards:
        number = numbers[shard.root] = numbers.get(shard.root, -1) + 1
        part = part_of_root(shard.root)
        yield ("shards", part, shard_key(shard.root, number)), shard_fact(shard)
