"""What this node's own record says, as facts of its feeds: they reach those it has no link with."""

from collections.abc import Iterator, Mapping
from typing import Any

import trio

from ..state.errors import FeedFull
from ..state.kinds import all_parts, part_of_root
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
_WHOLLY_SAID = ("models", "shards")  # kinds of feeds that hold nothing else


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
            with trio.move_on_after(defaults.SAY_LOOK):  # what was said earlier may come from peers
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
        failed: FeedFull | None = None
        stale = [fact for fact in self._held() if fact not in wanted]
        for fact, value in [*((fact, None) for fact in stale), *wanted.items()]:
            before = self._said.get(fact, {})
            if value is not None and (before == value or _is_busier(before, value)):
                continue
            try:
                self._set(fact, value)
            except FeedFull as error:  # the others are said all the same
                failed = error
        if failed is None:
            self._health.clear("state")
        else:
            self._health.report("state", failed.message)

    def _held(self) -> Iterator[Fact]:
        """The facts that this node's feeds hold, also those that it said in an earlier run."""
        for kind, part in all_parts():
            if kind in _WHOLLY_SAID:
                for key in self._state.keys(kind, part=part):
                    yield kind, part, key

    def _set(self, fact: Fact, value: Mapping[str, Any] | None) -> None:
        kind, part, key = fact
        self._state.set(kind, key, value, part=part)
        if value is None:
            self._said.pop(fact, None)
        else:
            self._said[fact] = value


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
