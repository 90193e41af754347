"""The fine-tunings of a node: accepting, stopping, resuming, restarting, results, refusals."""

import errno
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shoal.dht.errors import ModelError
from shoal.tasks.engine.families import Architecture
from shoal.tasks.errors import NoRoute
from shoal.tasks.text.frames import TextInfo
from shoal.tasks.text.process import ChatTurn
from shoal.tasks.tuning.trainer import defaults
from shoal.tasks.tuning.trainer.accepting import Request, Tunable
from shoal.tasks.tuning.trainer.checkpoint import load
from shoal.tasks.tuning.trainer.curve import Curve, Point
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import tensor_shapes
from shoal.tasks.tuning.trainer.plan import Errand
from shoal.tasks.tuning.trainer.running import Tuning
from shoal.tasks.tuning.trainer.settings import Wishes
from shoal.tasks.tuning.trainer.subject import AdapterSubject
from shoal.tasks.tuning.trainer.surroundings import State, Surroundings
from shoal.tasks.tuning.trainer.training import Progress, Task, TuningRun
from shoal.tasks.tuning.trainer.tunings import Tunings
from shoal.transport.identity import PeerId
from tests.dht.models import FakeHost
from tests.tasks.tuning.bigram import Bigrams
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain

pytestmark = pytest.mark.trio
Clock = trio.testing.MockClock
ROOT = "ab" * 32
LINES = [{"text": "abcdefgh"[: 3 + n % 5] * (1 + n % 3)} for n in range(40)]


class Letters:
    """An encoder in which each letter is a token."""

    info = TextInfo(VOCABULARY, None, 1, (1,), False)

    async def encode(self, text: str) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [2 + ord(letter) % (VOCABULARY - 2) for letter in text]

    async def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True
    ) -> list[int]:
        raise AssertionError


MODEL = Tunable(ROOT, ARCH, 64, Letters())


class Node:
    """One node's fine-tunings, over restarts of its daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = FakeHost(inline=True)
        self.chains = list[NumpyChain]()
        self.published = list[tuple[str, str]]()
        self.names = {"taken"}
        self.disturb: Callable[[int], Any] | None = None
        self.fail: Exception | None = None
        self.remote: RemoteTunings | None = None
        self.whole: Bigrams | None = None
        self.data = folder / "data.jsonl"
        self.data.write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def chain(self, root: str, arch: Architecture) -> NumpyChain:
        assert root == ROOT and arch is ARCH
        self.chains.append(NumpyChain(self.disturb))
        return self.chains[-1]

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Tunings]:
        async def arch_of(_root: str) -> Architecture:
            return ARCH

        async def publish(folder: Path, name: str, base: str) -> str:
            if self.fail is not None:
                raise self.fail
            assert base == ROOT
            self.published.append((name, (folder / "adapter_model.safetensors").read_bytes().hex()))
            return "cd" * 32

        async def named() -> set[str]:
            return self.names

        around = Surroundings(self, arch_of, publish, named, remote=self.remote, whole=self.whole)
        tunings = Tunings(self.host, self.folder / "tuning", around)
        async with trio.open_nursery() as nursery:
            await nursery.start(tunings.run)
            yield tunings
            await tunings.leave()
            nursery.cancel_scope.cancel()

    def ask(self, **more: Any) -> Request:
        wishes = {"modules": ("q_proj",), "steps": 12, "seed": 5, "rate": 0.01}
        given = {k: more.pop(k) for k in ("name", "out", "moves") if k in more}
        return Request("tiny", self.data, Wishes(**{**wishes, **more}), **given)

    def files(self) -> set[str]:
        return {p.name for p in self.folder.rglob("*") if p.is_file()} - {"data.jsonl"}


class RemoteTunings:
    """Another node trains some steps in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = FakeHost(inline=True)
        self.jobs = list[str]()
        self.starts = list[int | None]()
        self.gone = list[str]()
        self.until = 12  # step after which it stops
        self.state: State | None = None
        self.fail: TuningError | None = None
        self.replicates = trio.Event()
        self.silent = False  # whether no other node answers

    async def replicate(self, job: str, progress: Progress) -> None:
        self.replicates.set()
        if self.silent:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    async def submit(self, errand: Errand, start: State | None) -> str:
        await trio.lowlevel.checkpoint()
        self.jobs.append(f"{len(self.jobs):064x}")
        self.starts.append(None if start is None else start[0].step)
        self.state = start
        return self.jobs[-1]

    async def follow(
        self, job: str, errand: Errand, progress: Progress, show: Callable[[list[Point]], None]
    ) -> State:
        if self.fail is not None:
            raise self.fail
        folder = self.folder / "remote"
        folder.mkdir(exist_ok=True)
        task = Task(errand.settings, folder, errand.data)
        (folder / "rows").write_bytes(errand.rows.read_bytes())
        curve = Curve(self.host, folder / "curve")

        def disturb(number: int) -> None:
            if len(curve.points) >= self.until:
                raise NoRoute("no node has layer 1")

        training = TuningRun(
            self.host, task, AdapterSubject(errand.settings, errand.shapes, NumpyChain(disturb)),
            curve, progress,
        )  # fmt: skip
        try:
            await training.run()
        finally:
            learned = load(
                self.host.files,
                folder / "checkpoint",
                errand.settings,
                tensor_shapes(errand.settings, errand.shapes),
                errand.run,
            )
            if learned is not None:
                self.state = learned, curve.points
        show(curve.points)
        assert self.state is not None
        return self.state

    async def take_back(self, job: str, errand: Errand) -> State | None:
        await trio.lowlevel.checkpoint()
        self.gone.append(job)
        return self.state

    async def move(self, job: str) -> None:
        await trio.lowlevel.checkpoint()
        self.gone.append(f"moved {job}")

    def trainer(self, job: str) -> PeerId | None:
        return PeerId("far")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def quiet(_done: int, _total: int) -> None:
    pass


async def ended(tuning: Tuning) -> None:
    while tuning.is_active or tuning.scope is not None:
        with trio.move_on_after(1):
            await tuning.progress.changed.wait()


async def begin(tunings: Tunings, node: Node, **more: Any) -> Tuning:
    return await tunings.begin(node.ask(**more), MODEL, quiet)


async def test_from_a_file_to_an_adapter(node: Node, autojump_clock: Clock, tmp_path: Path) -> None:
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node, out=tmp_path / "out")
        assert tunings.find(tuning.id[:5]) is tunings.find("tiny-data") is tuning
        await ended(tuning)
    plan = tuning.plan
    assert (plan.state, plan.adapter, plan.name) == ("done", "cd" * 32, "tiny-data")
    ((name, weights),) = node.published
    assert name == "tiny-data"
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes().hex() == weights
    assert plan.counts.rows == 40 and plan.settings.held_out == 4
    assert node.chains[0].closed


async def result(node: Node) -> str:
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node)
        await ended(tuning)
    return node.published[0][1]


async def test_after_a_restart_it_goes_on_by_itself(tmp_path: Path, autojump_clock: Clock) -> None:
    """Until it is done; the result is that of an undisturbed one."""
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    wanted = await result(Node(tmp_path / "0"))
    node = Node(tmp_path / "1")

    async with node.daemon() as tunings:
        tuning = await begin(tunings, node)
        while tuning.progress.step < 5:
            await tuning.progress.changed.wait()
    assert tuning.plan.state == "running" and 5 <= tuning.progress.saved < 12
    async with node.daemon() as tunings:
        (again,) = tunings.all()
        assert again.id == tuning.id and again.plan.reached == tuning.progress.saved
        await ended(again)
        assert len(await tunings.points(again)) == 12
    assert node.published == [("tiny-data", wanted)]
    async with node.daemon() as tunings:
        assert [each.plan.state for each in tunings.all()] == ["done"]
        assert len(await tunings.points(tunings.all()[0])) == 12
    assert len(node.published) == 1


async def test_stop_and_resume(node: Node, autojump_clock: Clock) -> None:
    def disturb(number: int) -> None:
        if number > 3 and not node.names - {"taken"}:
            raise NoRoute("no node has layer 1")

    node.disturb = disturb
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node)
        while not tuning.progress.trouble:
            await tuning.progress.changed.wait()
        assert tuning.progress.trouble == "no node has layer 1"
        await tunings.stop(tuning)
        assert (tuning.plan.state, tuning.progress.saved) == ("stopped", 3)
        with pytest.raises(TuningError, match="is stopped"):
            await tunings.stop(tuning)
    async with node.daemon() as tunings:
        (tuning,) = tunings.all()
        await trio.sleep(100)
        assert (tuning.plan.state, tuning.progress.step) == ("stopped", 3)
        node.names.add("go")
        await tunings.resume(tuning)
        with pytest.raises(TuningError, match="is running"):
            await tunings.resume(tuning)
        await ended(tuning)
        assert tuning.plan.state == "done"


async def test_one_that_moves_comes_back_as_an_adapter(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    wanted = await result(Node(tmp_path / "0"))
    node = Node(tmp_path / "1")
    node.remote = RemoteTunings(node.folder)
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node, moves=True)
        await ended(tuning)
        assert (tuning.plan.state, tuning.plan.job, tuning.progress.step) == ("done", "", 12)
        assert len(await tunings.points(tuning)) == 12 and node.remote.gone == node.remote.jobs
    assert node.published == [("tiny-data", wanted)] and not node.chains


async def test_one_that_moves_is_stopped_and_goes_on_from_there(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    wanted = await result(Node(tmp_path / "0"))
    node = Node(tmp_path / "1")
    remote = node.remote = RemoteTunings(node.folder)
    remote.until = 5
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node, moves=True)
        while not tuning.progress.trouble:
            await tuning.progress.changed.wait()
        assert tunings.trainer(tuning) == "far"
        await tunings.move(tuning)
        assert remote.gone == [f"moved {tuning.plan.job}"]
        assert tunings.find(tuning.plan.job) is tunings.find(tuning.plan.job[:9]) is tuning
    async with node.daemon() as tunings:
        (tuning,) = tunings.all()
        await trio.sleep(1)
        assert len(remote.jobs) == 1, "a restart of this node submits nothing again"
        await tunings.stop(tuning)
        assert (tuning.plan.state, tuning.plan.job, tuning.progress.saved) == ("stopped", "", 5)
        with pytest.raises(TuningError, match="is stopped"):
            await tunings.move(tuning)
        remote.until = 12
        await tunings.resume(tuning)
        await ended(tuning)
        assert remote.starts == [None, 5] and tuning.plan.state == "done"
    assert node.published == [("tiny-data", wanted)]


async def test_killed_while_its_rows_are_replicated_it_is_submitted_once(
    node: Node, autojump_clock: Clock, tmp_path: Path
) -> None:
    """Only the files of that moment are left."""
    remote = node.remote = RemoteTunings(tmp_path)
    remote.silent = True
    async with node.daemon() as tunings:
        await begin(tunings, node, moves=True)
        await remote.replicates.wait()
        shutil.copytree(tmp_path / "tuning", tmp_path / "killed" / "tuning")
    again = Node(tmp_path / "killed")
    again.remote = remote
    async with again.daemon() as tunings:
        (tuning,) = tunings.all()
        with trio.fail_after(60):
            await ended(tuning)
    assert tuning.plan.state == "done" and len(remote.jobs) == 1 and remote.gone == remote.jobs


async def test_stopped_while_its_rows_are_replicated_it_leaves_no_job(
    node: Node, autojump_clock: Clock, tmp_path: Path
) -> None:
    remote = node.remote = RemoteTunings(tmp_path)
    remote.silent = True
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node, moves=True)
        await remote.replicates.wait()
        await tunings.stop(tuning)
        assert len(remote.jobs) == 1 and remote.gone == remote.jobs
        remote.silent = False
        await tunings.resume(tuning)
        await ended(tuning)
    assert tuning.plan.state == "done" and remote.gone == remote.jobs


async def test_what_fails_elsewhere_fails_here(node: Node, autojump_clock: Clock) -> None:
    remote = node.remote = RemoteTunings(node.folder)
    remote.fail = TuningError("too-large", "too large for another node")
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node, moves=True)
        await ended(tuning)
        assert (tuning.plan.state, tuning.plan.error) == ("failed", "too-large")
        assert tuning.plan.job == "" and remote.gone == remote.jobs


async def test_one_that_stays_is_not_moved(node: Node, autojump_clock: Clock) -> None:
    node.disturb = lambda number: (_ for _ in ()).throw(NoRoute("no"))
    async with node.daemon() as tunings:
        with pytest.raises(TuningError) as refused:
            await begin(tunings, node, moves=True)
        assert refused.value.code == "stays", "this node has no jobs"
        tuning = await begin(tunings, node)
        with pytest.raises(TuningError) as refused:
            await tunings.move(tuning)
        assert refused.value.code == "stays"
    node.remote = RemoteTunings(node.folder)
    async with node.daemon() as tunings:
        with pytest.raises(TuningError) as refused:
            await begin(tunings, node, moves=True, together="us")
        assert refused.value.code == "stays"


async def test_remove_leaves_no_files(node: Node, autojump_clock: Clock) -> None:
    async with node.daemon() as tunings:
        done = await begin(tunings, node)
        await ended(done)
        node.disturb = lambda number: (_ for _ in ()).throw(NoRoute("no"))
        running = await begin(tunings, node)
        await trio.sleep(5)
        assert running.plan.name == "tiny-data-2"
        for tuning in (done, running):
            await tunings.remove(tuning)
        assert not tunings.all()
        with pytest.raises(TuningError) as raised:
            tunings.find(done.id)
        assert raised.value.code == "unknown-tuning"
    assert node.files() == set()
    async with node.daemon() as tunings:
        assert not tunings.all()


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"modules": ("router",)}, "bad-modules"),
        ({"length": 65}, "bad-length"),
        ({"name": "taken"}, "name-taken"),
        ({"name": "../x"}, "bad-name"),
        ({"name": "ab" * 32}, "bad-name"),
        ({"out": Path("/proc")}, "folder-used"),
        ({"out": Path("/proc/x")}, "unwritable"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    node: Node, autojump_clock: Clock, more: dict[str, Any], code: str
) -> None:
    async with node.daemon() as tunings:
        with pytest.raises((TuningError, ModelError)) as raised:
            await begin(tunings, node, **more)
        assert getattr(raised.value, "code", "") == code and raised.value.hint
        assert not tunings.all()
    assert node.files() == set()


async def test_bad_data_and_a_client_that_leaves_leave_nothing(
    node: Node, autojump_clock: Clock
) -> None:
    async with node.daemon() as tunings:
        node.data.write_text("no\njson\n")
        with pytest.raises(TuningError, match="2 of 2 lines are broken"):
            await begin(tunings, node)
        node.data.write_text(json.dumps(LINES[0]))
        with trio.CancelScope() as scope:
            scope.cancel()
            await begin(tunings, node)
        assert scope.cancelled_caught
    assert node.files() == set()


async def test_a_full_disk_at_the_start_is_said(node: Node, autojump_clock: Clock) -> None:
    async with node.daemon() as tunings:
        node.host.files.free = 1 << 20
        with pytest.raises(TuningError, match="has 1 MiB free") as raised:
            await begin(tunings, node)
        assert raised.value.code == "disk-full"
        node.host.files.free = None
        node.host.files.fail_at = 0
        with pytest.raises(TuningError) as failed:
            await begin(tunings, node)
        assert failed.value.code == "disk" and failed.value.hint
    assert node.files() == set()


async def test_the_result_waits_for_space_and_fails_for_other_reasons(
    node: Node, autojump_clock: Clock
) -> None:
    async with node.daemon() as tunings:
        node.fail = OSError(errno.ENOSPC, "No space left on device")
        tuning = await begin(tunings, node)
        while "no space" not in tuning.progress.trouble:
            await tuning.progress.changed.wait()
        node.fail = None
        await ended(tuning)
        assert tuning.plan.state == "done"
        node.fail = ModelError("bad-adapter", "it does not fit")
        failed = await begin(tunings, node)
        await ended(failed)
        assert (failed.plan.state, failed.plan.error) == ("failed", "bad-adapter")
        node.fail = None
        await tunings.resume(failed)
        await ended(failed)
        assert failed.plan.state == "done" and failed.plan.error == ""


async def test_a_damaged_plan_or_data_does_not_stop_the_others(
    node: Node, autojump_clock: Clock
) -> None:
    node.disturb = lambda number: (_ for _ in ()).throw(NoRoute("no"))
    async with node.daemon() as tunings:
        broken, damaged, good = [await begin(tunings, node) for _ in range(3)]
        await trio.sleep(1)
    node.disturb = None
    (broken.folder / "plan.json").write_text("{")
    (damaged.folder / "rows").write_bytes(b"1234")
    async with node.daemon() as tunings:
        assert {each.id for each in tunings.all()} == {damaged.id, good.id}
        for each in tunings.all():
            await ended(each)
        found = {each.id: (each.plan.state, each.plan.error) for each in tunings.all()}
    assert found == {damaged.id: ("failed", "damaged"), good.id: ("done", "")}


async def test_only_a_few_run_at_once(node: Node, autojump_clock: Clock) -> None:
    node.disturb = lambda number: (_ for _ in ()).throw(NoRoute("no"))
    async with node.daemon() as tunings:
        several = [await begin(tunings, node) for _ in range(defaults.RUNNING_AT_ONCE + 1)]
        await trio.sleep(1)
        assert [each.queued for each in several] == [False] * defaults.RUNNING_AT_ONCE + [True]
        await tunings.stop(several[0])
        await trio.sleep(1)
        assert not several[-1].queued


@pytest.mark.parametrize("name", ["0" * 12, "notes", "\x1b[2J", "0" * 13])
async def test_links_and_folders_of_others_are_left_alone(node: Node, name: str) -> None:
    """A folder without a plan is removed at the start, unless it is not of this program."""
    outside = node.folder / "photos"
    for folder in (outside, outside / "curve"):
        folder.mkdir()
        (folder / "one.jpg").write_bytes(b"1")
    (node.folder / "tuning").mkdir()
    (node.folder / "tuning" / name).symlink_to(outside)
    refused = node.folder / "tuning" / ("1" * 12)
    refused.mkdir()
    (refused / "rows").write_bytes(b"1")
    (refused / "curve").symlink_to(outside)
    (node.folder / "tuning" / "mine").mkdir()
    (node.folder / "tuning" / "mine" / "two.jpg").write_bytes(b"2")
    async with node.daemon() as tunings:
        assert not tunings.all()
    assert (outside / "one.jpg").exists() and (outside / "curve" / "one.jpg").exists()
    assert (node.folder / "tuning" / "mine" / "two.jpg").exists()
    assert not (refused / "rows").exists()


async def test_a_plan_under_a_name_with_control_characters_is_not_listed(
    node: Node, autojump_clock: Clock
) -> None:
    async with node.daemon() as tunings:
        tuning = await begin(tunings, node)
        await ended(tuning)
        tuning.folder.rename(tuning.folder.with_name("\x1b[2Jabcdef"))
    async with node.daemon() as tunings:
        assert not tunings.all()
