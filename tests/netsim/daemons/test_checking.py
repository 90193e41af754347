"""Workers that lie about the results of jobs, in whole daemons on simulated hosts."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.state.views.jobs import Job
from shoal.tasks.jobs.checking import defaults
from shoal.tasks.jobs.checking.fingerprint import pack_fingerprint, read_fingerprint
from shoal.tasks.jobs.results import JobOutcome
from shoal.tasks.jobs.runner import RowRunner
from tests.marks import in_ci
from tests.tasks.fake_swarm import peer_of

from .test_jobs import client, result, run, servers, submit

Row = dict[str, Any]
Lie = Callable[[Row, "Liar"], Row]


class Liar:
    """A worker whose results are changed by `lie` before they are published."""

    def __init__(self, node: DaemonHandle, lie: Lie) -> None:
        self.peer, self.told = node.peer, 0
        self.earlier: list[Row] = []  # honest results of other jobs
        self._lie = lie
        worker = node.node.working.worker
        runners = [each for each in worker.runners.values() if isinstance(each, RowRunner)]
        assert len(runners) == 3
        for runner in runners:
            self._honest = runner.run
            runner.run = self._run_with(runner.run)  # type: ignore[method-assign]

    def _run_with(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        async def lying(job: Job, progress: Callable[[int], None]) -> JobOutcome:
            outcome: JobOutcome = await honest(job, progress)
            rows = [json.loads(line) for line in outcome.text.splitlines()]
            lies = [{**self._lie(row, self), "line": row["line"]} for row in rows]
            self.earlier += rows
            self.told += lies != rows
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lies)
            return replace(outcome, text=text)

        return lying


def invented(row: Row, _liar: Liar) -> Row:
    """Text that looks right, and was not computed."""
    tokens = [7 + at for at in range(row["tokens"])]
    return {**row, "fingerprint": pack_fingerprint(tokens, [-0.5] * len(tokens))}


def cut(row: Row, _liar: Liar) -> Row:
    """The first half of an answer."""
    known = read_fingerprint(row["fingerprint"], 4096)
    half = len(known.tokens) // 2
    half_print = pack_fingerprint(known.tokens[:half], [-mark / 16 for mark in known.marks[:half]])
    return {**row, "text": row["text"][: len(row["text"]) // 2], "tokens": half,
            "fingerprint": half_print}  # fmt: skip


def replayed(row: Row, liar: Liar) -> Row:
    """The result of another job."""
    return liar.earlier[0] if liar.earlier and liar.earlier[0]["text"] != row["text"] else row


def other_text(row: Row, _liar: Liar) -> Row:
    """Return another text with the right fingerprint."""
    return {**row, "text": row["text"][::-1]}


def unsure(row: Row, _liar: Liar) -> Row:
    """The right tokens, whose probabilities were not computed."""
    known = read_fingerprint(row["fingerprint"], 4096)
    marks = [0.0 if mark > 8 else -2.0 for mark in known.marks]
    return {**row, "fingerprint": pack_fingerprint(known.tokens, marks)}


def broken(row: Row, _liar: Liar) -> Row:
    """An error in place of a row that can be done."""
    return {"line": row["line"], "error": "bad-row", "message": "not UTF-8 text"}


@pytest.fixture
def every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute every row, so that one job shows what is found."""
    monkeypatch.setattr(defaults, "PROBATION_SHARE", 1.0)


async def swarm(world: World, lie: Lie) -> tuple[DaemonHandle, Liar, list[DaemonHandle]]:
    """Return a client, a liar, and all nodes that serve the model, of which the liar is one."""
    nodes = await servers(world)
    asker = await client(world, nodes)
    return asker, Liar(nodes[0], lie), nodes


@pytest.mark.parametrize("lie", [invented, *in_ci(cut, replayed, other_text, unsure)])
def test_a_lie_is_found_and_its_piece_done_elsewhere(lie: Lie, every_row: None) -> None:
    async def body(world: World) -> None:
        asker, liar, nodes = await swarm(world, lie)
        if lie is replayed:  # there must be honest results before
            for job in await submit(asker, 8, seed=6):
                await result(asker, job)
        jobs = await submit(asker, 8)
        found = [await result(asker, job) for job in jobs]
        assert liar.told, "the liar had a job"
        if lie is not replayed:  # whose first results are right
            assert all(each["claimant"] != liar.peer for each in found)
        for number, each in enumerate(found):
            prompt = f"Once upon {number} times"
            said = await asker.ask("run", model="tiny", prompt=prompt, max_tokens=24, seed=7)
            assert each["text"] == said["text"]
        checks = asker.node.working.own.checks
        assert checks.trust.is_liar(liar.peer)
        assert not any(checks.trust.is_liar(node.peer) for node in nodes[1:])
        told = liar.told
        later = [await result(asker, job) for job in await submit(asker, 8, seed=8)]
        assert all(each["claimant"] != liar.peer for each in later)
        assert liar.told == told, "a liar does no more jobs of this user"
        await trio.sleep(30)
        usage = nodes[1].node.state.views.usage
        assert usage.checked_by(asker.peer)[liar.peer].wrong
        assert nodes[1].node.working.own.checks.trust.share(liar.peer) == 1.0

    run(body)


@pytest.mark.ci
@pytest.mark.parametrize("pause", [5.0, 120.0])  # before and after pieces leave the feed
def test_results_from_before_the_lie_was_found_are_done_again(
    pause: float, every_row: None
) -> None:
    async def body(world: World) -> None:
        asker, liar, _nodes = await swarm(world, lambda row, liar: row)
        desk = asker.node.working.own.desk
        jobs = await submit(asker, 12)
        for job in jobs:
            await desk.complete(job, wait=True)
        assert liar.peer in {result.claimant for result in desk.results}
        read = await result(asker, jobs[0])
        await trio.sleep(pause)
        liar._lie = invented
        for job in await submit(asker, 8, seed=8):
            await result(asker, job)
        assert liar.told
        await trio.sleep(60)
        found = [await result(asker, job) for job in jobs]
        if pause > 60:
            assert found[0]["claimant"] == read["claimant"], "what was read stays"
        assert all(each["claimant"] != liar.peer for each in found[1:])

    run(body)


@pytest.mark.ci
def test_an_error_that_others_do_not_find_is_not_believed(every_row: None) -> None:
    """The piece is done elsewhere. The claimant is no liar, because its engine may have failed."""

    async def body(world: World) -> None:
        asker, liar, _nodes = await swarm(world, broken)
        found = [await result(asker, job) for job in await submit(asker, 8)]
        assert liar.told and not any(each["error"] for each in found)
        assert all(each["claimant"] != liar.peer for each in found)
        assert not asker.node.working.own.checks.trust.is_liar(liar.peer)
        answer = await asker.ask("job_submit", model="tiny", prompts=["x " * 20_000])
        found = [await result(asker, job) for job in answer["jobs"]]
        assert [each["error"] for each in found] == ["prompt-too-long"], "others find it too"

    run(body)


@pytest.mark.ci
def test_honest_workers_are_not_refused(every_row: None) -> None:
    """Also with tokens that are drawn by chance, and with rows that are impossible."""

    async def body(world: World) -> None:
        asker, liar, nodes = await swarm(world, lambda row, _liar: row)
        for how in ({}, {"temperature": 0.8}, {"temperature": 1.2, "top_k": 5, "top_p": 0.8}):
            for job in await submit(asker, 6, **how):
                found = await result(asker, job)
                assert "fingerprint" not in found["text"]
                assert (await asker.ask("job_show", job=job))["rows_checked"] == 1
        trust = asker.node.working.own.checks.trust
        assert not any(trust.is_liar(node.peer) for node in nodes) and liar.told == 0
        assert asker.node.working.own.checks.rows == 18
        assert not any("refused" in fact for fact in _facts(asker))
        known = [trust.figures[node.peer] for node in nodes if node.peer in trust.figures]
        assert sum(each.rows for each in known) == 18 and sum(each.ms for each in known) > 0

    run(body)


def _facts(node: DaemonHandle) -> list[Any]:
    state = node.node.state
    return [state.get("jobs", key) for key in state.keys("jobs")]


def test_checked_work_is_weight_in_the_queue_of_a_daemon() -> None:
    async def body(world: World) -> None:
        node = await world.host("a").start(engine=False)
        await trio.sleep(1)
        working, (giver, other) = node.node.working, (peer_of(1), peer_of(2))
        assert working.worker.queue.share(giver, [other]) == 1 / 2
        working.own.checks.trust.note_right(giver, 1, 3600.0)
        assert working.worker.queue.share(giver, [other]) == 2 / 3
        working.own.checks.trust.note_lie(giver)
        assert working.worker.queue.share(giver, [other]) == 1 / 2

    run(body)
