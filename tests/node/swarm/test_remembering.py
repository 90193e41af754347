"""Remembered members: stored, kept by an empty view, and a failing disk is reported."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.health import Health
from shoal.node.settings.config import DataFolder
from shoal.node.swarm.remembering import Remembering
from shoal.transport.address import Address
from shoal.transport.guard import Guard, Mishap
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity

pytestmark = pytest.mark.trio
PEER = Identity.from_seed(b"p" * 32).peer
OTHER = Identity.from_seed(b"o" * 32).peer
PLACE = Address("127.0.0.1", 4001, PEER)


class Swarm:
    """Replaces the directory and the endpoint; has one member, which is linked or not."""

    def __init__(self, *, there: bool = True, linked: bool = True) -> None:
        self.there = there
        self.linked = linked
        self.place = PLACE
        self.guard = Guard()

    def members(self) -> dict[str, Any]:
        return {PEER: SimpleNamespace(addresses=(str(self.place),))} if self.there else {}

    def link(self, peer: str) -> Any:
        status = SimpleNamespace(address=("127.0.0.1", 4001))
        return SimpleNamespace(status=status) if self.linked else None


def remembering(data: Path, swarm: Swarm, health: Health) -> Remembering:
    parts = cast(Any, swarm)
    return Remembering(RealHost(), DataFolder(data), parts, parts, health)


def remove_files(folder: Path) -> None:
    for each in folder.rglob("*"):
        if each.is_file():
            each.unlink()


async def test_linked_members_are_known_at_the_next_start(tmp_path: Path) -> None:
    assert await remembering(tmp_path, Swarm(), Health()).write()
    assert await remembering(tmp_path, Swarm(), Health()).known() == [PLACE]


async def test_the_same_addresses_are_written_once(tmp_path: Path) -> None:
    kept = remembering(tmp_path, Swarm(), Health())
    assert await kept.write()
    remove_files(tmp_path)
    assert await kept.write()
    assert await kept.known() == []


@pytest.mark.parametrize("nobody", [Swarm(there=False), Swarm(linked=False)])
async def test_empty_view_keeps_the_remembered_members(tmp_path: Path, nobody: Swarm) -> None:
    await remembering(tmp_path, Swarm(), Health()).write()
    later = remembering(tmp_path, nobody, Health())
    assert not await later.write()
    assert await later.known() == [PLACE]


async def test_a_member_whose_record_triggers_a_bug_is_left_out(tmp_path: Path) -> None:
    class Two(Swarm):
        def members(self) -> dict[str, Any]:
            return {OTHER: SimpleNamespace(addresses=7), **super().members()}

    swarm, told = Two(), list[Mishap]()
    swarm.guard.report = told.append
    kept = remembering(tmp_path, swarm, Health())
    assert await kept.write()
    assert await kept.known() == [PLACE]
    assert [(each.subject, each.error) for each in told] == [(OTHER, "TypeError")]


async def test_failed_write_is_a_condition_until_one_succeeds(tmp_path: Path) -> None:
    health = Health()
    kept = remembering(tmp_path / "gone", Swarm(), health)
    assert await kept.write()
    assert [condition.name for condition in health.conditions()] == ["disk"]
    (tmp_path / "gone").mkdir()
    assert await kept.write()
    assert not health.conditions()


async def test_a_failed_write_is_forgotten_when_the_old_addresses_are_back(tmp_path: Path) -> None:
    health, swarm, data = Health(), Swarm(), tmp_path / "data"
    data.mkdir()
    kept = remembering(data, swarm, health)
    assert await kept.write()
    data.rename(tmp_path / "gone")
    swarm.place = Address("127.0.0.1", 4002, PEER)
    assert await kept.write()
    (tmp_path / "gone").rename(data)
    swarm.place = PLACE
    assert await kept.write()
    assert not health.conditions()
