"""The contents of a node's library: which roots must stay, and what evictions announce."""

from types import SimpleNamespace
from typing import Any, cast

from shoal.node.health import Health
from shoal.node.models.inventory import Inventory
from shoal.state.membership.record import ModelName

SERVED, FETCHED, IDLE = "a" * 64, "b" * 64, "c" * 64


class Parts:
    """Replaces the exchange and the directory."""

    def __init__(self) -> None:
        self.withdrawn: list[str] = []
        self.published: dict[str, Any] = {}
        self.swarm = SimpleNamespace(withdraw=self.withdrawn.append)
        models = tuple(ModelName(root[:1], root, 6, 1000) for root in (SERVED, IDLE))
        self._own = SimpleNamespace(
            shards=(SimpleNamespace(root=SERVED),), models=models, holdings=(SERVED, IDLE)
        )

    def fetching(self) -> frozenset[str]:
        return frozenset({FETCHED})

    def own(self) -> Any:
        return self._own

    def members(self) -> dict[str, Any]:
        return {}

    def publish(self, **what: Any) -> None:
        self.published |= what


def holdings(parts: Parts, said: list[str], health: Health | None = None) -> Inventory:
    some = cast(Any, parts)
    return Inventory(some, some, some, some, some, health or Health(), said.append)


def test_served_and_fetched_roots_are_in_use() -> None:
    assert holdings(Parts(), []).in_use() == {SERVED, FETCHED}


def test_evicted_root_is_withdrawn() -> None:
    parts, said = Parts(), list[str]()
    holdings(parts, said).evicted(IDLE)
    assert [model.root for model in parts.published["models"]] == [SERVED]
    assert parts.published["holdings"] == (SERVED,)
    assert parts.withdrawn == [IDLE]
    assert said == [f"{IDLE[:16]} is no longer on this disk"]


def test_unrepaired_chunks_are_a_condition_until_repaired() -> None:
    health, said = Health(), list[str]()
    held = holdings(Parts(), said, health)
    held.mended(2, 0)
    assert said == ["2 chunks were damaged on this disk, and fetched again from others"]
    assert not health.conditions()
    held.mended(0, 1)
    (condition,) = health.conditions()
    assert condition.sentence.startswith("1 chunk was damaged") and condition.hint
    held.mended(1, 0)
    assert not health.conditions() and len(said) == 2
