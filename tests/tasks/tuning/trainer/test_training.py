"""Runs of a fine-tuning: they learn, survive being killed at any step, and refuse bad gradients."""

import errno
import hashlib
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.errors import NoRoute, SessionError
from shoal.tasks.tuning.interface import Gradients
from shoal.tasks.tuning.trainer import checkpoint, defaults
from shoal.tasks.tuning.trainer.curve import Curve, read
from shoal.tasks.tuning.trainer.errors import Damaged, Diverged, Refused
from shoal.tasks.tuning.trainer.optimiser import Learned, tensor_shapes
from shoal.tasks.tuning.trainer.rows import RowsWriter, TrainingRow, file_digest
from shoal.tasks.tuning.trainer.subject import AdapterSubject
from shoal.tasks.tuning.trainer.training import Progress, Task, TuningRun
from shoal.transport.host.real import RealHost
from tests.dht.models import FakeFiles, FakeHost
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain, settings

pytestmark = pytest.mark.trio
Clock = trio.testing.MockClock
SHAPES = module_shapes(ARCH)
Disturb = Callable[[int], Callable[[Gradients], Gradients] | None]


class Run:
    """One fine-tuning in a folder, which several processes may run after one another."""

    def __init__(self, folder: Path, host: RealHost, **changes: Any) -> None:
        self.folder, self.host = folder, host
        self.settings = settings(**changes)
        self.progress = Progress()
        self.curve = Curve(host, folder / "curve")

    async def prepare(self) -> None:
        """Write rows in which each token follows from its predecessor."""
        self.folder.mkdir(exist_ok=True)
        random = np.random.default_rng(1)
        writer = RowsWriter(self.host, self.folder / "rows", self.settings.length)
        for _ in range(40):
            ids = [int(random.integers(VOCABULARY))]
            for _ in range(int(random.integers(4, 16))):
                ids.append((3 * ids[-1] + 1) % VOCABULARY)
            await writer.add([TrainingRow(ids, 1, None)])
        await writer.finish()

    async def run(self, chain: NumpyChain, pause: float = 0.0) -> dict[Any, Any]:
        self.curve = Curve(self.host, self.folder / "curve")
        digest = file_digest(self.host.files, self.folder / "rows")
        self.task = Task(self.settings, self.folder, digest)
        subject = AdapterSubject(self.settings, SHAPES, chain)
        training = TuningRun(self.host, self.task, subject, self.curve, self.progress, pause)
        return await training.run()

    def bytes(self) -> bytes:
        return (self.folder / "checkpoint").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", FakeHost(inline=True))


async def test_it_learns(run: Run, autojump_clock: Clock) -> None:
    run.settings = settings(steps=120, look=20, rate=0.03, rank=8, alpha=16.0)
    await run.prepare()
    tensors = await run.run(NumpyChain(), pause=1e9)
    points = run.curve.points
    assert [point.step for point in points] == [*range(1, 121)]
    assert points[-1].loss < 0.8 * points[0].loss
    held = [point.held_out for point in points if point.held_out is not None]
    assert len(held) == 6 and held[-1] < 0.85 * held[0] and run.progress.best == min(held)
    assert all((tensors[name] == each).all() for name, each in tensors.items())
    assert (run.progress.step, run.progress.trouble, run.progress.saved) == (120, "", 120)


class Killed(Exception):
    """Stands for `kill -9`: nothing is written after it."""


def killed_at(call: int) -> Disturb:
    def disturb(number: int) -> None:
        if number == call:
            raise Killed

    return disturb


@pytest.mark.parametrize("pause", [0.0, 1e9])
async def test_killed_at_any_step_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, autojump_clock: Clock, pause: float
) -> None:
    """With a checkpoint after each step, and with none until the end."""
    host = FakeHost(inline=True)
    undisturbed = Run(tmp_path / "whole", host)
    await undisturbed.prepare()
    await undisturbed.run(NumpyChain())
    wanted = undisturbed.bytes()
    for step in range(1, 13):
        run = Run(tmp_path / str(step), host)
        await run.prepare()
        with pytest.raises(Killed):
            await run.run(NumpyChain(killed_at(step)), pause)
        await run.run(NumpyChain(), pause)
        assert run.bytes() == wanted, step
        assert [_plain(point) for point in run.curve.points] == [
            _plain(point) for point in undisturbed.curve.points
        ]


class ForgetfulFiles(FakeFiles):
    """Files whose disk loses in a power cut what was appended and not made durable."""

    def __init__(self) -> None:
        super().__init__()
        self._durable: dict[Path, int] = {}  # sizes of files with more than that

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        self._durable.setdefault(path, self.size(path) or 0)
        super().append(path, data, mode=mode)

    def sync(self, path: Path) -> None:
        super().sync(path)
        self._durable.pop(path, None)

    def cut_power(self) -> None:
        """Lose what is not durable."""
        for path, size in self._durable.items():
            if path.exists():  # it was not renamed
                os.truncate(path, size)
        self._durable.clear()


async def test_a_power_cut_leaves_no_gap_in_the_curve(run: Run, autojump_clock: Clock) -> None:
    files = ForgetfulFiles()
    assert isinstance(run.host, FakeHost)
    run.host.fake_files = files
    await run.prepare()
    with pytest.raises(Killed):
        await run.run(NumpyChain(killed_at(7)))
    files.cut_power()
    await run.run(NumpyChain())
    known = read(files, run.folder / "curve")
    assert [point.step for point in known] == list(range(1, 13))
    logs = [each for each in files.list(run.folder / "curve") if "tfevents" in each.name]
    assert min(each.size for each in logs) > 500, "events of both runs"


class FullFiles(ForgetfulFiles):
    """Files whose disk is full for `refused` appends to the curve, from the 4th on."""

    def __init__(self, refused: int, fits: int) -> None:
        super().__init__()
        self._left, self._refused, self._fits = 3, refused, fits

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        if path.name == "loss.jsonl":
            self._left -= 1
            if -self._refused <= self._left < 0:
                super().append(path, data[: self._fits], mode=mode)
                raise OSError(errno.ENOSPC, "No space left on device")
        super().append(path, data, mode=mode)


@pytest.mark.parametrize("refused", [1, 100])
@pytest.mark.parametrize("fits", [0, 20])
async def test_a_disk_that_was_full_leaves_no_gap_in_the_curve(
    run: Run, autojump_clock: Clock, refused: int, fits: int
) -> None:
    """A part of a line may have fitted on the disk."""
    files = FullFiles(refused, fits)
    assert isinstance(run.host, FakeHost)
    run.host.fake_files = files
    await run.prepare()
    with pytest.raises(Killed):
        await run.run(NumpyChain(killed_at(9)))
    files.cut_power()
    await run.run(NumpyChain())
    assert [point.step for point in read(files, run.folder / "curve")] == list(range(1, 13))


def _plain(point: Any) -> Any:
    return point.step, point.loss, point.held_out, point.norm


async def test_cancelled_at_any_await_it_resumes_with_the_same_bytes(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    """Also between a step and its held-out loss. A checkpoint is written in any case."""
    host = FakeHost(inline=True)
    undisturbed = Run(tmp_path / "whole", host, steps=6, look=2)
    await undisturbed.prepare()
    await undisturbed.run(NumpyChain())
    for number in range(1, 5):
        run = Run(tmp_path / str(number), host, steps=6, look=2)
        await run.prepare()
        chain = NumpyChain()
        with trio.CancelScope() as scope:
            left = number

            async def checkpointed(*_args: Any, chain: NumpyChain = chain) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    scope.cancel()
                async with trio.open_nursery():  # makes a group of the cancellation
                    await trio.lowlevel.checkpoint()
                return NumpyChain._forward(chain, *_args)[:2]

            chain.loss = checkpointed  # type: ignore[assignment]
            await run.run(chain, pause=1e9)
        assert scope.cancelled_caught == (number <= 3)
        assert run.progress.saved == min(6, 2 * number), number
        await run.run(NumpyChain(), pause=1e9)
        assert [*map(_plain, run.curve.points)] == [*map(_plain, undisturbed.curve.points)]
        assert run.bytes() == undisturbed.bytes(), number


async def test_bad_gradients_are_dropped_and_the_step_is_repeated(
    run: Run, autojump_clock: Clock, tmp_path: Path
) -> None:
    await run.prepare()
    await run.run(NumpyChain())
    bad = Run(tmp_path / "bad", run.host)
    await bad.prepare()
    said = list[str]()

    def disturb(number: int) -> Callable[[Gradients], Gradients] | None:
        said.append(bad.progress.trouble)
        return spoil if number in (3, 7) else blow_up if number == 5 else None

    def spoil(found: Gradients) -> Gradients:
        return replace(found, tensors={n: each * np.nan for n, each in found.tensors.items()})

    def blow_up(found: Gradients) -> Gradients:
        return replace(
            found, tensors={n: each * np.float32(1e6) for n, each in found.tensors.items()}
        )

    chain = NumpyChain(disturb)
    await bad.run(chain)
    assert bad.bytes() == run.bytes() and chain.calls == run.settings.steps + 3
    assert any("not finite" in each for each in said) and any("plausible" in each for each in said)
    assert bad.progress.trouble == ""


async def test_gradients_that_stay_bad_end_it_and_keep_the_checkpoint(
    run: Run, autojump_clock: Clock
) -> None:
    await run.prepare()

    def disturb(number: int) -> Callable[[Gradients], Gradients] | None:
        return None if number <= 4 else lambda found: replace(found, loss=float("inf"))

    with pytest.raises(Diverged, match=r"step 5 failed repeatedly: .*loss is inf"):
        await run.run(NumpyChain(disturb))
    learned = checkpoint.load(
        run.host.files,
        run.folder / "checkpoint",
        run.settings,
        tensor_shapes(run.settings, SHAPES),
        run.task.digest,
    )
    assert learned is not None and learned.step == 4


async def test_it_waits_for_a_stage(run: Run, autojump_clock: Clock) -> None:
    await run.prepare()
    said = set[str]()

    def disturb(number: int) -> None:
        said.add(run.progress.trouble)
        if 3 <= number <= 8:
            raise SessionError("busy", "busy")

    began = trio.current_time()
    await run.run(NumpyChain(disturb))
    pauses = [min(2**n * defaults.RETRY[0], defaults.CHAIN_RETRY) for n in range(6)]
    assert trio.current_time() - began >= sum(pauses)
    assert "busy" in said and run.progress.step == 12


async def test_it_goes_on_a_second_after_a_chain_appears(run: Run, autojump_clock: Clock) -> None:
    """However long there was none: a restarted node's own shard takes minutes to load."""
    await run.prepare()
    said = set[str]()
    there = trio.current_time() + 300.5

    def disturb(number: int) -> None:
        said.add(run.progress.trouble)
        if trio.current_time() < there:
            raise NoRoute("no node has layer 1")

    await run.run(NumpyChain(disturb))
    assert there <= trio.current_time() <= there + 1
    assert "no node has layer 1" in said and run.progress.step == 12


@pytest.mark.parametrize("code", ["bad-adapter", "unsupported-model", "not-finite"])
async def test_a_refusal_that_time_does_not_cure_ends_it(
    run: Run, autojump_clock: Clock, code: str
) -> None:
    await run.prepare()
    refused = list[int]()

    def disturb(number: int) -> None:
        if number > 4:
            refused.append(number)
            raise SessionError(code, "no such projection")

    with pytest.raises(Refused, match=f"{code}.*no such projection") as found:
        await run.run(NumpyChain(disturb), pause=1e9)
    assert found.value.code == "chain-refused" and len(refused) == defaults.REFUSALS


async def test_one_node_at_fault_does_not_end_it(run: Run, autojump_clock: Clock) -> None:
    await run.prepare()

    def disturb(number: int) -> None:
        if number % defaults.REFUSALS:
            raise SessionError("bad-adapter", "no such projection")

    await run.run(NumpyChain(disturb))
    assert run.progress.step == 12


async def test_a_full_disk_does_not_lose_the_last_checkpoint(
    run: Run, autojump_clock: Clock
) -> None:
    await run.prepare()
    files: Any = run.host.files
    write, failing = files.write_pieces, [False]

    def write_pieces(path: Path, pieces: Any, *, mode: int = 0o600) -> None:
        def cut() -> Any:
            yield next(iter(pieces))
            raise OSError(errno.ENOSPC, "No space left on device")

        write(path, cut() if failing[0] else pieces, mode=mode)

    files.write_pieces = write_pieces
    seen = dict[int, tuple[int, str]]()

    def disturb(number: int) -> None:
        seen[number] = run.progress.saved, run.progress.trouble
        failing[0] = 5 <= number < 9
        if number == 8:
            every = tensor_shapes(run.settings, SHAPES)
            held = checkpoint.load(files, run.folder / "checkpoint", run.settings, every,
                                   run.task.digest)  # fmt: skip
            assert held is not None and held.step == 4

    await run.run(NumpyChain(disturb))
    assert seen[7][0] == 4
    assert run.progress.saved == 12
    assert len([*run.folder.iterdir()]) == 3, "no temporary file stays behind"


async def test_at_the_end_it_waits_for_space(run: Run, autojump_clock: Clock) -> None:
    await run.prepare()
    files: Any = run.host.files
    write, left = files.write_pieces, [3]

    def write_pieces(path: Path, pieces: Any, *, mode: int = 0o600) -> None:
        if (left := left_of(path)) > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        assert left == 0
        write(path, pieces, mode=mode)

    def left_of(_path: Path) -> int:
        left[0] = max(0, left[0] - 1)
        return left[0]

    files.write_pieces = write_pieces
    await run.run(NumpyChain(), pause=1e9)
    assert run.progress.saved == 12


async def test_checkpoints_of_other_settings_or_data_are_refused(
    run: Run, autojump_clock: Clock
) -> None:
    await run.prepare()
    await run.run(NumpyChain())
    run.settings = settings(rate=0.02)
    with pytest.raises(Damaged, match="other settings"):
        await run.run(NumpyChain())


@pytest.mark.parametrize("at", [0, 5, 200, -40, -1])
async def test_damaged_checkpoints_are_refused(run: Run, autojump_clock: Clock, at: int) -> None:
    await run.prepare()
    await run.run(NumpyChain())
    data = bytearray(run.bytes())
    data[at] ^= 1
    (run.folder / "checkpoint").write_bytes(data)
    with pytest.raises(Damaged, match="not what was written"):
        await run.run(NumpyChain())
    (run.folder / "checkpoint").write_bytes(data[:100])
    with pytest.raises(Damaged):
        await run.run(NumpyChain())


@pytest.mark.parametrize("head", [b"", b"\xff\xff\xff\xff", b"\0\0\0\5\x81\xa1a\x93\1"])
async def test_a_checkpoint_with_a_wrong_head_is_refused(
    run: Run, autojump_clock: Clock, head: bytes
) -> None:
    """One that someone has written with a right digest."""
    await run.prepare()
    await run.run(NumpyChain())
    (run.folder / "checkpoint").write_bytes(head + hashlib.sha256(head).digest())
    with pytest.raises(Damaged):
        await run.run(NumpyChain())


class SlowStore:
    """A place for checkpoints that takes 10 s for each."""

    def __init__(self) -> None:
        self.saved = list[int]()

    async def load(self) -> Learned | None:
        await trio.lowlevel.checkpoint()
        return None

    async def save(self, learned: Learned) -> None:
        await trio.sleep(10)
        self.saved.append(learned.step)


class SlowChain(NumpyChain):
    """Takes a second for each step."""

    async def gradients(self, *args: Any, **more: Any) -> Gradients:
        await trio.sleep(1)
        return await super().gradients(*args, **more)


async def test_checkpoints_take_a_twentieth_of_the_time(run: Run, autojump_clock: Clock) -> None:
    """A checkpoint of all weights of a model may have gigabytes."""
    run.settings = settings(steps=450, look=450)
    await run.prepare()
    digest = file_digest(run.host.files, run.folder / "rows")
    store = SlowStore()
    task = Task(run.settings, run.folder, digest, store=store)
    subject = AdapterSubject(run.settings, SHAPES, SlowChain())
    await TuningRun(run.host, task, subject, run.curve, run.progress, 30.0).run()
    assert len(store.saved) == 4 and store.saved[0] in (30, 31)
    assert all(b - a >= 200 for a, b in itertools.pairwise(store.saved[:3]))
