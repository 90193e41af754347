"""A piece goes on from its finished rows after a restart of its node."""

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio

from shoal.state.views.jobs import Job
from shoal.tasks.errors import PromptTooLong
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.kinds.table import KINDS
from shoal.tasks.jobs.outputs import PieceOutputs
from shoal.tasks.jobs.results import JobOutcome
from shoal.tasks.jobs.runner import RowRunner
from shoal.tasks.jobs.sealing.states import StateSeal
from shoal.tasks.jobs.spec import JobSpec, SpecSeal
from shoal.tasks.jobs.submitting import row_of
from tests.dht.models import FakeHost
from tests.tasks.jobs.test_models import ROOT
from tests.tasks.jobs.test_runner import Gateway, Node, job, many

pytestmark = pytest.mark.trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SlowHost(FakeHost):
    """Host with a disk that takes a second for everything."""

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.sleep(1)
        return work(*args)


def on_disk(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(folder: Path, data: bytes) -> None:
    (path,) = folder.iterdir()
    path.write_bytes(data)


class CountingGateway(Gateway):
    """Gateway that counts its answers."""

    answers = 0

    async def _compute(self, prompt: str) -> None:
        await super()._compute(prompt)
        self.answers += 1


class CountingNode(Node):
    """Node with a gateway that counts its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = CountingGateway()
        self.shop = replace(self.shop, services=self.counting)


def started(folder: Path, host: FakeHost | None = None) -> CountingNode:
    """Start a node whose disk has what earlier runs have left."""
    node = CountingNode()
    outputs = PieceOutputs(host or FakeHost(inline=True), folder)
    node.shop = replace(node.shop, outputs=outputs)
    node.runner = RowRunner(KINDS["generate"], node.shop)
    return node


async def killed(node: CountingNode, asked: Job, rows: int) -> None:
    """Do a piece until the node is killed after some rows."""
    node.counting.room = 1

    def count(step: int, saved: bytes = b"") -> None:
        if step == rows:
            scope.cancel()

    with trio.CancelScope() as scope:
        await node.runner.run(asked, count)
    assert scope.cancelled_caught


async def done(asked: Job) -> JobOutcome:
    return await Node().run(asked)


async def test_a_killed_node_goes_on_from_the_finished_rows(
    tmp_path: Path, autojump_clock: object
) -> None:
    asked = many(12)
    await killed(started(tmp_path), asked, 5)
    node = started(tmp_path)
    assert await node.run(asked) == await done(asked)
    assert node.counting.answers == 12 - 5


async def test_killed_again_and_again_it_ends(tmp_path: Path, autojump_clock: object) -> None:
    asked, answers = many(9), 0
    for rows in (2, 4, 6, 8):
        node = started(tmp_path)
        await killed(node, asked, rows)
        answers += node.counting.answers
    node = started(tmp_path)
    assert await node.run(asked) == await done(asked)
    assert answers + node.counting.answers == 9, "no row was computed twice"


@pytest.mark.parametrize("damage", ["torn", "flipped", "rubbish", "unreadable"])
async def test_damaged_outputs_are_computed_again(
    tmp_path: Path, autojump_clock: object, damage: str
) -> None:
    asked = many(6)
    await killed(started(tmp_path), asked, 4)
    (data,) = on_disk(tmp_path).values()
    damaged = {
        "torn": data[:-7],
        "flipped": data.replace(b"ROW ", b"RAW ", 1),
        "rubbish": b"\0\xff\n" + data + b"00000000 {}\n",
        "unreadable": b"x" * (2 * defaults.RESULT_BYTES + 1),
    }  # fmt: skip
    write(tmp_path, damaged[damage])
    node = started(tmp_path)
    assert await node.run(asked) == await done(asked)
    known = 0 if damage == "unreadable" else 4 - (damage != "rubbish")
    assert node.counting.answers == 6 - known


async def test_a_row_that_is_impossible_stays_so(tmp_path: Path, autojump_clock: object) -> None:
    node, asked = started(tmp_path), job(JobSpec(ROOT, row_of("generate", "x")))
    node.counting.errors["x"] = PromptTooLong(9, 5)
    first = await node.run(asked)
    assert first.error == "prompt-too-long"
    again = started(tmp_path)
    assert await again.run(asked) == first and not again.counting.requests


async def test_another_spec_under_the_same_id_is_another_piece(
    tmp_path: Path, autojump_clock: object
) -> None:
    await killed(started(tmp_path), many(6), 4)
    lines = b"".join(row_of("generate", f"other {number}") + b"\n" for number in range(6))
    other = job(JobSpec(ROOT, lines, last=6), 6)
    assert other.id == many(6).id
    assert await started(tmp_path).run(other) == await done(other)


@pytest.mark.parametrize("secrets", [[b"s" * 32], []])
async def test_a_sealed_piece_goes_on_after_a_restart_and_leaves_no_text(
    tmp_path: Path, autojump_clock: object, secrets: list[bytes]
) -> None:
    """Without the key of the group, it begins again."""
    asked = job(JobSpec(ROOT, row_of("generate", "secret"), seal=SpecSeal(b"b" * 32)))
    seal_of = partial(StateSeal, secrets, b"place")

    def outputs() -> PieceOutputs:
        return PieceOutputs(FakeHost(inline=True), tmp_path, lambda job: seal_of(job.id))

    first = outputs()
    await first.open(asked)
    await first.added(asked, b'{"line": 1, "text": "secret"}\n')
    assert not any(b"secret" in data for data in on_disk(tmp_path).values())
    known = await outputs().open(asked)
    assert known == ({1: b'{"line": 1, "text": "secret"}\n'} if secrets else {})
    seal_of = partial(StateSeal, [b"o" * 32], b"place")
    assert await outputs().open(asked) == {}, "a key of another group"


async def test_outputs_of_a_sealed_job_are_not_on_the_disk_without_seals(
    tmp_path: Path, autojump_clock: object
) -> None:
    sealed = JobSpec(ROOT, row_of("generate", "secret"), seal=SpecSeal(b"b" * 32))
    node = started(tmp_path)
    await node.shop.outputs.open(job(sealed))
    await node.shop.outputs.added(job(sealed), b'{"line": 1}\n')
    assert not on_disk(tmp_path)
    await node.shop.outputs.added(job(JobSpec(ROOT, row_of("generate", "plain"))), b"x")
    assert not on_disk(tmp_path), "it is not open"


async def test_files_of_pieces_that_are_done_are_deleted(
    tmp_path: Path, autojump_clock: object
) -> None:
    pieces = [replace(many(3), id=f"{number:064x}") for number in range(3)]
    for piece in pieces:
        await started(tmp_path).run(piece)
    outputs = started(tmp_path).shop.outputs
    await outputs.tidy(lambda piece: piece == pieces[1].id)
    assert [name.partition("-")[0] for name in on_disk(tmp_path)] == [pieces[1].id]


async def test_files_of_earlier_runs_count_for_the_limit(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "OUTPUTS_KEPT", 3000)
    for number in range(12):
        await killed(started(tmp_path), replace(many(16), id=f"{number:064x}"), 10)
    assert sum(map(len, on_disk(tmp_path).values())) < 6000


@pytest.mark.parametrize("sealed", [False, True])
async def test_what_is_on_the_disk_counts_for_the_limit(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """Also what a file has besides the outputs, and after a restart."""
    monkeypatch.setattr(defaults, "OUTPUTS_KEPT", 3000)
    seal = SpecSeal(b"b" * 32) if sealed else None
    asked = job(JobSpec(ROOT, row_of("generate", "x"), seal=seal))
    pieces = [replace(asked, id=f"{number:064x}") for number in range(4)]

    def outputs() -> PieceOutputs:
        seals = partial(StateSeal, [b"s" * 32], b"place")
        return PieceOutputs(FakeHost(inline=True), tmp_path, lambda job: seals(job.id))

    for _ in range(3):
        latest = outputs()
        for piece in pieces:
            await latest.open(piece)
            for number in range(1, 12):
                await latest.added(piece, b'{"line": %d, "text": "a"}\n' % number)
                assert sum(map(len, on_disk(tmp_path).values())) <= 3000
        assert len(on_disk(tmp_path)) > 1


async def test_outputs_that_are_deleted_while_they_are_read_are_read_all_the_same(
    tmp_path: Path, autojump_clock: object
) -> None:
    asked = many(6)
    await killed(started(tmp_path), asked, 4)
    outputs, found = PieceOutputs(SlowHost(inline=True), tmp_path), list[dict[int, bytes]]()

    async def read() -> None:
        found.append(await outputs.open(asked))

    await outputs.tidy(lambda piece: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(0.5)
        await outputs.tidy(lambda piece: False)
    assert len(found[0]) == 4 and not on_disk(tmp_path)


async def test_a_row_of_a_piece_that_is_deleted_leaves_no_file(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "OUTPUTS_KEPT", 10)
    one, other = (replace(many(3), id=f"{number:064x}") for number in range(2))
    outputs = PieceOutputs(SlowHost(inline=True), tmp_path)
    await outputs.open(one)
    await outputs.open(other)
    await outputs.added(one, b"x" * 20)  # it is the oldest, so it is deleted
    await outputs.added(other, b"y" * 20)
    await outputs.added(one, b"x" * 20)
    assert [name.partition("-")[0] for name in on_disk(tmp_path)] == [other.id]


async def test_without_disk_space_a_piece_is_done_all_the_same(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(inline=True)

    def full(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(host.fake_files, "append", full)
    asked = many(6)
    assert await started(tmp_path, host).run(asked) == await done(asked)
