"""What an owner shares: chosen, named, watched, stored, and withdrawn."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.state.membership.record import SharedModel
from shoal.tasks.sharing import defaults
from shoal.tasks.sharing.errors import EngineGone, ShareError
from shoal.tasks.sharing.sharing import Sharing
from shoal.transport.guard import Guard, Mishap
from shoal.transport.host.real import RealHost
from tests.fake_engine import FakeEngine, listing, running

pytestmark = pytest.mark.trio
HOST = RealHost()
MANY = listing("a:1", "b/c", "d", owner="library")


class Owner:
    """A node's shares, and what it has published."""

    def __init__(self, path: Path) -> None:
        self.said: list[tuple[str, ...]] = []
        self.troubles: list[ShareError | None] = []
        self.mishaps: list[Mishap] = []
        self.sharing = Sharing(
            HOST, path, self._publish, guard=Guard(self.mishaps.append),
            trouble=self.troubles.append,
        )  # fmt: skip

    def _publish(self, models: tuple[SharedModel, ...]) -> None:
        self.said.append(tuple(model.name for model in models))

    async def add(self, url: str, *models: str, **more: Any) -> list[str]:
        more = {"name": None, "every": False, "at_once": 4} | more
        return [each.name for each in await self.sharing.add(url, models, **more)]

    async def until(self, *names: str) -> None:
        with trio.fail_after(10):
            while not self.said or self.said[-1] != names:  # noqa: ASYNC110
                await trio.sleep(0.01)


@asynccontextmanager
async def owner(path: Path) -> AsyncIterator[Owner]:
    found = Owner(path / "shares.json")
    async with trio.open_nursery() as nursery:
        await nursery.start(found.sharing.run)
        yield found
        nursery.cancel_scope.cancel()


async def test_the_only_model_is_shared_and_several_must_be_chosen(tmp_path: Path) -> None:
    async with running(HOST) as one, running(HOST, models=MANY) as many, owner(tmp_path) as me:
        assert await me.add(one.url) == ["llama"]
        with pytest.raises(ShareError) as caught:
            await me.add(many.url)
        assert caught.value.code == "several-models" and "a:1" in caught.value.message
        with pytest.raises(ShareError) as caught:
            await me.add(many.url, "nix\x1b[31m")
        assert caught.value.code == "no-model" and caught.value.message.isprintable()
        with pytest.raises(ShareError):
            await me.add(many.url, every=True, name="x")
        assert await me.add(many.url, "a:1", "b/c") == ["a-1", "c"]
        assert await me.add(many.url, every=True) == ["a-1", "c", "d"]
        await me.until("a-1", "c", "d", "llama")
        with pytest.raises(ShareError) as caught:
            await me.add(one.url, name="d")
        assert caught.value.code == "name-taken"
        with pytest.raises(ShareError) as caught:
            await me.add(one.url, name="deadbeef")
        assert caught.value.code == "bad-name"
        await me.sharing.stop("c")
        await me.until("a-1", "d", "llama")
        with pytest.raises(ShareError) as caught:
            await me.sharing.stop("c")
        assert caught.value.code == "not-shared"


async def test_an_engine_without_models_or_without_an_answer_is_not_shared(
    tmp_path: Path,
) -> None:
    async with owner(tmp_path) as me:
        async with running(HOST, models={"data": []}) as empty:
            with pytest.raises(ShareError) as caught:
                await me.add(empty.url)
            assert caught.value.code == "no-model"
        with pytest.raises(EngineGone):
            await me.add(empty.url)
        assert me.sharing.all() == [] and not (tmp_path / "shares.json").exists()


async def test_shares_survive_a_restart_and_come_with_their_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "LOOK", 0.05)
    async with running(HOST) as fake, owner(tmp_path) as me:
        await me.add(fake.url, name="mine", at_once=2)
    async with owner(tmp_path) as me:
        (now,) = me.sharing.all()
        assert now.share.name == "mine" and now.watch.line.at_once == 2
        assert me.sharing.find("mine") is None
        await trio.sleep(0.2)
        assert not me.said and "no engine answers" in me.sharing.all()[0].trouble
        async with running(HOST, port=fake.port):
            await me.until("mine")
            assert me.sharing.find("mine") is not None
        await me.until()
        assert me.sharing.find("mine") is None


async def test_a_model_that_the_engine_drops_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "LOOK", 0.05)
    async with running(HOST, models=MANY) as fake, owner(tmp_path) as me:
        await me.add(fake.url, "d")
        await me.until("d")
        fake.models = listing("other")
        await me.until()
        assert "no longer has this model" in me.sharing.all()[0].trouble


async def test_a_barred_or_stopping_node_shares_nothing(tmp_path: Path) -> None:
    async with running(HOST) as fake, owner(tmp_path) as me:
        await me.add(fake.url)
        me.sharing.bar("a client shares nothing")
        assert me.sharing.find("llama") is None
        me.sharing.bar(None)
        assert me.sharing.find("llama") is not None
        me.sharing.leave()
        assert me.said == [("llama",), (), ("llama",), ()]
        assert "stopping" in str(me.sharing.barred)


async def test_a_damaged_file_is_reported_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "shares.json").write_text("{")
    async with running(HOST) as fake, owner(tmp_path) as me:
        assert isinstance(me.troubles[-1], ShareError) and me.sharing.all() == []
        await me.add(fake.url)
        assert me.troubles[-1] is None
    (saved,) = json.loads((tmp_path / "shares.json").read_text())["shares"]
    assert saved["name"] == "llama"


async def test_a_full_disk_shares_nothing(tmp_path: Path) -> None:
    async with running(HOST) as fake, owner(tmp_path / "nowhere" / "at" / "all") as me:
        with pytest.raises(OSError):
            await me.add(fake.url)
        assert me.sharing.all() == [] and not me.said


async def test_a_bug_that_an_engine_triggers_ends_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "LOOK", 0.05)

    def broken(*_: object) -> object:
        raise KeyError

    async with running(HOST) as fake, owner(tmp_path) as me:
        await me.add(fake.url)
        monkeypatch.setattr("shoal.tasks.sharing.engine.read_models", broken)
        with trio.fail_after(10):
            while len(me.mishaps) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert me.mishaps[0].error == "KeyError"


async def test_too_many_shares_are_refused(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(defaults.SHARES + 1)]
    async with running(HOST, models=listing(*names)) as fake, owner(tmp_path) as me:
        with pytest.raises(ShareError) as caught:
            await me.add(fake.url, every=True)
        assert caught.value.code == "too-many"
        assert len(await me.add(fake.url, *names[:-1])) == defaults.SHARES
        assert isinstance(fake, FakeEngine)
