"""The contents of a node's library: which roots must stay, and what evictions announce."""

from types import SimpleNamespace
from typing import Any, cast

from shoal.node.health import Health
from shoal.node.models.inventory import AnnouncedRoots, Inventory
from shoal.state.membership.record import ModelName

SERVED, IDLE = "a" * 64, "c" * 64


class Parts:
    """Replaces the exchange, the providers and the directory."""

    def __init__(self) -> None:
        self.withdrawn: list[str] = []
        self.published: dict[str, Any] = {}
        self.withdraw = self.withdrawn.append
        models = tuple(ModelName(root[:1], root, 6, 1000) for root in (SERVED, IDLE))
        self._own = SimpleNamespace(
            shards=(SimpleNamespace(root=SERVED),), models=models, stored=(SERVED, IDLE)
        )

    def own(self) -> Any:
        return self._own

    def members(self) -> dict[str, Any]:
        return {}

    def publish(self, **what: Any) -> None:
        self.published |= what


def announced(parts: Parts, said: list[str]) -> AnnouncedRoots:
    some = cast(Any, parts)
    return AnnouncedRoots(some, some, said.append)


def test_served_roots_are_in_use() -> None:
    assert announced(Parts(), []).in_use() == {SERVED}


def test_evicted_root_is_withdrawn() -> None:
    parts, said = Parts(), list[str]()
    announced(parts, said).evicted(IDLE)
    assert [model.root for model in parts.published["models"]] == [SERVED]
    assert parts.published["stored"] == (SERVED,)
    assert parts.withdrawn == [IDLE]
    assert said == [f"{IDLE[:16]} is no longer on this disk"]


def test_unrepaired_chunks_are_a_condition_until_repaired() -> None:
    health, said = Health(), list[str]()
    some = cast(Any, Parts())
    held = Inventory(some, some, some, some, health, said.append)
    held.mended(2, 0)
    assert said == ["2 chunks were damaged on this disk, and fetched again from others"]
    assert not health.conditions()
    held.mended(0, 1)
    (condition,) = health.conditions()
    assert condition.sentence.startswith("1 chunk was damaged") and condition.hint
    held.mended(1, 0)
    assert not health.conditions() and len(said) == 2
