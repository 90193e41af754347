"""Checkpoints of parts: the same state is stored and moved once, and lies are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.tasks.jobs.results import SavedWork
from shoal.tasks.tuning.moving import defaults
from shoal.tasks.tuning.moving.state import BadState
from shoal.tasks.tuning.trainer import optimiser
from shoal.tasks.tuning.trainer.curve import Point
from shoal.tasks.tuning.trainer.optimiser import Learned
from shoal.transport.decoding import decode
from shoal.transport.message import pack
from tests.tasks.tuning.moving.nodes import SHAPES, World

pytestmark = pytest.mark.trio
JOB = "ab" * 32


def learned(world: World, step: int, *, best: bool = True) -> Learned:
    """Return a state in which each tensor has other values at each step."""
    found = optimiser.begin(world.settings, SHAPES)
    random = np.random.default_rng(step)
    for group in (found.tensors, found.first, found.second):
        for each in group.values():
            each += np.abs(random.normal(size=each.shape)).astype(np.float32)
    found.step, found.loss, found.norms = step, 2.0, [1.0] * min(step, 16)
    if best:
        found.best = {name: each.copy() for name, each in found.tensors.items()}
        found.best_loss, found.best_step = 2.5, step
    return found


def points(step: int) -> list[Point]:
    every = range(1, step + 1)
    return [Point(n, 3.0 / n, 3.5 if n % 4 == 0 else None, 0.01, 1.0, 9) for n in every]


@pytest.mark.parametrize("best", [True, False])
async def test_a_state_comes_back_bit_for_bit(tmp_path: Path, best: bool) -> None:
    world = await World(tmp_path / "w").prepare()
    state = learned(world, 5, best=best)
    saved = await world.me.vault.save(JOB, world.terms, state, points(5))
    loaded = await world.other.vault.load(saved.work, world.terms)
    for group in ("tensors", "first", "second", "best"):
        before, after = getattr(state, group), getattr(loaded.learned, group)
        assert list(before) == list(after)
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert loaded.points == points(5) and loaded.learned.best_loss == state.best_loss
    assert (loaded.learned.step, loaded.learned.norms) == (5, state.norms)


async def test_identical_state_is_stored_and_moved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "PAGE", 4)
    world = await World(tmp_path / "w").prepare()
    vault, shelf = world.me.vault, world.me.shelf
    shelf.blobs.clear()
    first = learned(world, 5)
    one = await vault.save(JOB, world.terms, first, points(5))
    assert len(shelf.blobs) == 6, "manifest, adapter = best one, two moments, two pages"
    await world.other.vault.load(one.work, world.terms)
    world.other.shelf.asked.clear()
    second = learned(world, 7)
    second.best, second.best_loss, second.best_step = first.best, 2.5, 5
    two = await vault.save(JOB, world.terms, second, points(7))
    assert len(shelf.blobs) == 7, "the parts that belong only to the first are deleted"
    await world.other.vault.load(two.work, world.terms)
    assert len(world.other.shelf.asked) == 5, "neither the best adapter nor the full page"
    await vault.forget(JOB)
    assert not shelf.blobs


async def test_jobs_with_the_same_state_do_not_delete_each_others(tmp_path: Path) -> None:
    world = await World(tmp_path / "w").prepare()
    vault = world.me.vault
    saved = await vault.save(JOB, world.terms, learned(world, 5), points(5))
    await vault.save("cd" * 32, world.terms, learned(world, 5), points(5))
    await vault.forget("cd" * 32)
    assert (await vault.load(saved.work, world.terms)).learned.step == 5


async def test_a_look_fetches_no_tensors(tmp_path: Path) -> None:
    world = await World(tmp_path / "w").prepare()
    saved = await world.me.vault.save(JOB, world.terms, learned(world, 5), points(5))
    seen = await world.other.vault.look(JOB, saved.work, world.terms)
    assert (seen.step, seen.points, seen.best, seen.best_step) == (5, points(5), 2.5, 5)
    assert len(world.other.shelf.asked) == 2


Lie = Callable[[dict[str, Any], dict[str, bytes]], object]


def put(manifest: dict[str, Any], blobs: dict[str, bytes], name: str, data: bytes) -> None:
    """Replace a part by one with other bytes."""
    root = f"{len(blobs):064x}"
    blobs[root] = data
    manifest[name] = [root, len(data)]


def spoil(name: str, value: float) -> Lie:
    def lie(manifest: dict[str, Any], blobs: dict[str, bytes]) -> None:
        values = np.frombuffer(blobs[manifest[name][0]], "<f4").copy()
        values[7] = value
        put(manifest, blobs, name, values.tobytes())

    return lie


def say(**changes: Any) -> Lie:
    return lambda manifest, blobs: manifest.update(changes)


def curve(line: bytes) -> Lie:
    def lie(manifest: dict[str, Any], blobs: dict[str, bytes]) -> None:
        put(manifest, blobs, "page", line)
        manifest["curve"] = [manifest.pop("page")]

    return lie


LIES: dict[str, Lie] = {
    "nan": spoil("tensors", np.nan),
    "infinite moment": spoil("first", np.inf),
    "nan in the best": spoil("best", np.nan),
    "overflow": spoil("tensors", 1e38),
    "overflow in the best": spoil("best", -2e6),
    "negative second moment": spoil("second", -1.0),
    "short": lambda m, b: put(m, b, "tensors", b[m["tensors"][0]][:-4]),
    "long": lambda m, b: put(m, b, "second", b[m["second"][0]] + bytes(4)),
    "huge": say(first=["ab" * 32, 1 << 30]),
    "other run": say(run="cd" * 32),
    "too many steps": say(step=13),
    "negative step": say(step=-1),
    "nan loss": say(loss=float("nan")),
    "negative loss": say(loss=-1.0),
    "infinite norm": say(norms=[float("inf")]),
    "many norms": say(norms=[1.0] * 17),
    "late best": say(best_step=9),
    "format": say(format="shoal-tuning-state/2"),
    "no part": lambda m, b: m.pop("first"),
    "root": say(first=["x", 4]),
    "curve ahead": curve(b'{"step": 6, "loss": 1.0}\n'),
    "curve at 0": curve(b'{"step": 0, "loss": 1.0}\n'),
    "curve twice": curve(b'{"step": 3, "loss": 1.0}\n' * 2),
    "curve nan": curve(b'{"step": 3, "loss": NaN}\n'),
    "curve text": curve(b"\xff\n"),
    "curve deep": curve(b"[" * 9999 + b"\n"),
    "large page": say(curve=[["ab" * 32, defaults.PAGE_BYTES + 1]]),
}


@pytest.mark.parametrize("name", LIES)
async def test_a_checkpoint_that_lies_is_refused(tmp_path: Path, name: str) -> None:
    world = await World(tmp_path / "w").prepare()
    saved = await world.me.vault.save(JOB, world.terms, learned(world, 5), points(5))
    blobs = world.me.shelf.blobs
    manifest: Any = decode(blobs[saved.work.root], limit=1 << 20)
    LIES[name](manifest, blobs)
    data = pack(manifest)
    work = SavedWork(await world.me.shelf.put(data), len(data))
    with pytest.raises(BadState) as refused:
        await world.other.vault.load(work, world.terms)
    assert refused.value.code == "bad-checkpoint" and refused.value.hint
    if name in ("short", "long", "huge", "large page"):
        assert len(world.other.shelf.asked) == 1, "nothing but the manifest was fetched"


@pytest.mark.parametrize("size", [0, defaults.MANIFEST_BYTES + 1])
async def test_a_manifest_of_impossible_size_is_not_fetched(tmp_path: Path, size: int) -> None:
    world = await World(tmp_path / "w").prepare()
    with pytest.raises(BadState):
        await world.other.vault.load(SavedWork(world.spec.rows.root, size), world.terms)
    assert not world.other.shelf.asked
