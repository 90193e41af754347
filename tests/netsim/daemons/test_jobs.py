"""Jobs in whole daemons on simulated hosts: done by serving nodes, through partitions and
crashes.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.faults import Faults
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.state.feeds.entry import FeedName
from shoal.state.membership.record import ModelName, ShardRecord
from shoal.state.views.jobs import Job, JobState, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.defaults import USAGE_PACE
from shoal.tasks.inference.generation import GenerateRequest
from shoal.tasks.jobs.defaults import INLINE_BYTES
from shoal.tasks.jobs.results import JobOutcome, pack_outcome, read_outcome
from shoal.tasks.jobs.spec import JobSpec, RowOptions, pack_spec
from shoal.tasks.jobs.submitting import row_of
from shoal.tasks.usage.metering import Use
from shoal.transport.identity import Identity
from tests.marks import in_ci

Body = Callable[[World], Awaitable[Any]]
ROOT = "3c9fb63286f9ac5cb688ca64b92f7a15ecada07d32c2ccc1b35e4ae1deee98dc"  # of `tiny`
KEPT = 120.0  # seconds, instead of an hour, that claims stay
ROW = row_of("generate", "a stranger's")
SPEC = pack_spec(JobSpec(ROOT, ROW, options=RowOptions(max_tokens=40)))
SERVERS = 3
SLOW = replace(PROFILES["raspberry"], step_s=0.1)  # a job of 60 tokens takes 6 s


def run(body: Body, *, seed: int = 1, most: float = 7200.0) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(most):
            return await body(world)

    return world.run(main)


async def servers(world: World, count: int = SERVERS, **more: Any) -> list[DaemonHandle]:
    """Start nodes that each hold all layers, and that have each other's feeds."""
    made = [await world.host("n0").start(model="tiny", layers=(0, 6), **more)]
    for number in range(1, count):
        host = world.host(f"n{number}")
        made.append(await host.start(bootstrap=[made[0]], model="tiny", layers=(0, 6), **more))
    for node in made:
        await node.serving()
        await node.until(lambda status: status["peers"] == count - 1)
    return made


async def client(world: World, nodes: list[DaemonHandle], name: str = "client") -> DaemonHandle:
    """Start a node that serves nothing and submits jobs."""
    made: DaemonHandle = await world.host(name).start(bootstrap=nodes[:2], engine=False)
    await made.until(lambda status: status["peers"] >= len(nodes))
    await trio.sleep(20)  # every node has published its state
    return made


async def submit(node: DaemonHandle, count: int = 1, **more: Any) -> list[str]:
    asked = {"model": "tiny", "max_tokens": 24, "seed": 7, **more}
    prompts = [f"Once upon {number} times" for number in range(count)]
    answer = await node.ask("job_submit", prompts=prompts, **asked)
    return list(answer["jobs"])


async def result(node: DaemonHandle, job: str) -> dict[str, Any]:
    return await node.ask("job_result", job=job, until_done=True)


def done(nodes: list[DaemonHandle]) -> int:
    """Return the number of executions that were completed."""
    return sum(node.node.working.worker.done for node in nodes)


def test_a_job_done_by_another_node_gives_the_text_of_run() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world)
        asker = await client(world, nodes)
        (job,) = await submit(asker)
        listed = await nodes[0].ask("job_list")
        assert [item["job"] for item in listed["jobs"]] in ([], [job])
        found = await result(asker, job)
        assert found["state"] == "done" and found["claimant"] in {node.peer for node in nodes}
        said = await asker.ask(
            "run", model="tiny", prompt="Once upon 0 times", max_tokens=24, seed=7
        )
        assert found["text"] == said["text"] and found["text"]
        assert done(nodes) == 1
        (mine,) = (await asker.ask("job_list", mine=True))["jobs"]
        assert mine["state"] == "done" and mine["read"]
        await trio.sleep(60)
        assert not asker.node.state.views.jobs.all_in(JobState.DONE), "it is taken out"
        assert (await result(asker, job))["text"] == found["text"], "and its result is still stored"
        again = await asker.ask("job_cancel", job=job[:10])
        assert again["job"] == job
        with pytest.raises(ControlError) as raised:
            await asker.ask("job_result", job=job)
        assert raised.value.code == "unknown-job"

    run(body)


def test_a_strangers_model_is_neither_fetched_nor_read_for_its_job() -> None:
    async def body(world: World) -> None:
        stranger = await world.host("stranger").start(engine=False)
        worker = await world.host("worker").start(bootstrap=[stranger], model="tiny", layers=(0, 6))
        await worker.serving()
        library, directory = stranger.node.library, stranger.node.directory
        real = await library.manifest(ROOT)
        made = replace(real, config={**real.config, "max_position_embeddings": 77})
        root = (await library.save(made.encode())).root
        assert root != ROOT
        false = ShardRecord(root, True, 0, real.layers, True, "float32", 4096)
        directory.publish(
            models=(ModelName("mine", root, real.layers, 9),), stored=(root,), shards=(false,)
        )
        await library.set_name("mine", root)
        await trio.sleep(20)
        (job,) = await submit(stranger, model="mine")
        (other,) = await submit(stranger)
        assert (await result(stranger, other))["state"] == "done"
        await trio.sleep(60)
        assert worker.node.working.worker.current_job is None and done([worker]) == 1
        assert worker.node.library.roots() == {ROOT}
        listed = {each["job"]: each["state"] for each in (await stranger.ask("job_list"))["jobs"]}
        assert listed[job] == "open"

    run(body)


def test_only_the_claimant_of_a_job_uses_others_for_its_author() -> None:
    """Otherwise any gateway could charge its requests to another node."""

    async def body(world: World) -> None:
        node = await world.host("a").start(engine=False)
        liar, worker, author = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3))
        nonce, jobs = b"n" * 16, node.node.state.views.jobs
        job = Job(job_id(author, nonce), author, "generate", SPEC, lease=600.0)
        jobs.changed(FeedName(author, "jobs", 0), job.id, job_fact(job, nonce))
        jobs.changed(
            FeedName(worker, "claims", 0), job.id, claim_fact(new_claim(worker, job.id, 1))
        )
        stage, working = node.node.stage, node.node.working
        for gateway, number in (
            (worker, job.id),
            (liar, job.id),
            (worker, ""),
            (worker, "ab" * 32),
        ):
            stage.meter.opened(Use(gateway, ROOT, number))
        working.write_usage()
        await trio.sleep(5)
        usage = node.node.state.views.usage
        requests = {peer: usage.of(peer)[node.peer, ROOT].requests for peer in usage.clients()}
        assert requests == {author: 1, liar: 1, worker: 2}

    run(body)


@pytest.mark.ci
def test_jobs_are_done_once_through_a_partition_and_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sides that do not hear each other begin with different jobs. A killed node's job is begun
    again, by it or by others, and each job has one result that all see.
    """
    for most in ("FIRST_ROWS", "ROWS_AT_ONCE"):  # so that jobs are left when the faults come
        monkeypatch.setattr(f"shoal.tasks.jobs.defaults.{most}", 1)

    async def body(world: World) -> None:
        nodes = await servers(world, profile=SLOW)
        asker = await client(world, nodes)
        faults = Faults(world)
        jobs = await submit(asker, 60, max_tokens=60)
        await trio.sleep(9)
        rules = faults.partition([nodes[2].host], [node.host for node in (*nodes[:2], asker)])
        before, killed = done(nodes), nodes[1]
        while killed.node.working.worker.current_job is None:  # noqa: ASYNC110
            await trio.sleep(0.1)
        at, had = killed.node.working.worker.current_job, killed.node.working.worker.done
        await killed.host.crash()
        await trio.sleep(30)
        nodes[1] = await killed.host.restart()
        assert 0 < before < len(jobs), "the faults come in the middle"
        await trio.sleep(60)
        faults.heal(*rules)
        for job in jobs:
            found = await result(asker, job)
            assert found["state"] == "done"
        assert at in jobs
        executed = done(nodes) + had
        assert len(jobs) <= executed <= 1.05 * len(jobs)

    run(body)


def test_a_long_result_is_a_blob_until_its_author_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.state.defaults.CLAIM_KEPT", KEPT)

    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        asker = await client(world, nodes)
        (job,) = await submit(asker, max_tokens=800)
        found = await result(asker, job)
        assert found["tokens"] == 800 and len(found["text"].encode()) > INLINE_BYTES
        (worker,) = [node for node in nodes if node.peer == found["claimant"]]
        claim = worker.node.state.views.jobs.claim_by(worker.peer, job)
        assert claim is not None
        root = read_outcome(claim.result).blob
        assert root in worker.node.library.blobs.roots()
        assert root not in asker.node.library.blobs.roots(), "it is stored as a result"
        await worker.host.crash()
        again = await worker.host.restart()
        await trio.sleep(60)
        assert root in again.node.library.blobs.roots()
        await trio.sleep(KEPT + 150)
        assert again.node.state.views.jobs.claim_by(worker.peer, job) is None
        assert root not in again.node.library.blobs.roots()
        assert not again.node.library.store.has(root)

    run(body)


def test_a_job_reaches_a_node_that_comes_after_its_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows are a blob. The author goes off once it says that another node has the job."""
    monkeypatch.setattr("shoal.tasks.jobs.defaults.INLINE_ROWS_BYTES", 10)

    async def body(world: World) -> None:
        asker = await world.host("asker").start(engine=False)
        await trio.sleep(20)
        prompts = ["Once upon a time"]
        answer = await asker.ask("job_submit", model="tiny", prompts=prompts, max_tokens=600)
        (job,) = answer["jobs"]
        assert not answer["replicated"] and answer["lack"]["code"] == "not-replicated"
        shown = await asker.ask("job_show", job=job)
        assert shown["replicated"] is False and "in reach" in shown["lack"]["message"]
        helper = await world.host("n0").start(
            bootstrap=[asker], model="tiny", layers=(0, 6), profile=SLOW
        )
        jobs = helper.node.state.views.jobs
        with trio.fail_after(120):
            while not (await asker.ask("job_show", job=job))["replicated"]:  # noqa: ASYNC110
                await trio.sleep(0.5)
        assert set(helper.node.library.blobs.roots()) == {shown["spec"]["blob"]}
        assert (await asker.ask("job_show", job=job))["state"] != "done"
        await asker.host.crash()
        await trio.sleep(120)
        standing = jobs.get(job)
        assert standing is not None and standing.state is JobState.DONE
        again = await asker.host.restart()
        assert (await result(again, job))["claimant"] == helper.peer

    run(body)


def test_a_job_that_is_taken_back_is_stopped() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 2, profile=SLOW)
        asker = await client(world, nodes)
        (job,) = await submit(asker, max_tokens=500)
        await trio.sleep(15)
        (at,) = [node for node in nodes if node.node.working.worker.current_job]
        assert at.node.gateway.sessions == 1
        await asker.ask("job_cancel", job=job)
        await trio.sleep(3)
        assert at.node.working.worker.current_job is None
        assert [node.node.gateway.sessions for node in nodes] == [0, 0]
        assert [node.node.stage.sessions for node in nodes] == [0, 0]
        assert not any(node.node.state.views.jobs.claims_of(job) for node in nodes)

    run(body)


def test_interactive_requests_come_before_jobs() -> None:
    async def body(world: World) -> None:
        (node,) = nodes = await servers(world, 1, profile=SLOW)
        asker = await client(world, nodes)
        waits = {"model": "tiny", "prompt": "In the beginning", "max_tokens": 40}
        began = trio.current_time()
        expected = await asker.ask("run", **waits)
        alone = trio.current_time() - began
        said = await asker.ask(
            "run", model="tiny", prompt="Once upon 0 times", max_tokens=120, seed=7
        )
        (job,) = await submit(asker, max_tokens=120)
        await trio.sleep(8)
        assert node.node.working.worker.current_job == job
        began = trio.current_time()
        assert (await asker.ask("run", **waits))["text"] == expected["text"]
        assert trio.current_time() - began < alone + 0.5
        assert node.node.working.worker.current_job == job, "it has not lost its job"
        found = await result(asker, job)
        assert found["text"] == said["text"], "not a token is lost or made twice"
        assert trio.current_time() - began < alone + 120 * 0.1

    run(body)


def test_a_stage_takes_no_job_while_a_request_waits_for_it() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 1, profile=SLOW, jobs=False)
        asker = await client(world, nodes)
        other = await world.host("other").start(
            bootstrap=nodes, engine=False, jobs=True, model="tiny"
        )
        await trio.sleep(20)
        async with trio.open_nursery() as nursery:

            async def wait_for_an_answer() -> None:
                await asker.ask("run", model="tiny", prompt="Once", max_tokens=400)

            nursery.start_soon(wait_for_an_answer)
            await trio.sleep(2)
            (job,) = await submit(asker)
            await trio.sleep(20)
            assert nodes[0].node.stage.sessions == 1
            assert other.node.working.worker.done == 0
        found = await result(asker, job)
        assert found["claimant"] == other.peer, "a node that serves nothing asks one that does"

    run(body)


@pytest.mark.parametrize(
    "lie", [b"rubbish", pack_outcome(JobOutcome(blob="ee" * 32, size=5000))], ids=["none", "a blob"]
)
def test_a_false_claim_that_a_job_is_done_is_refused(lie: bytes) -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        asker = await client(world, nodes)
        liar = await client(world, nodes, "liar")
        liar.node.state.set("member", "jobs", {"kinds": ["generate"]})
        done_at_once = liar.node.state.views.jobs.watch()
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:

            async def claim_all() -> None:
                async for change in done_at_once:
                    if change.subject is not None and change.value is not None:
                        claim = new_claim(liar.peer, change.subject, 1, done=True, result=lie)
                        liar.node.state.set("claims", claim.job, claim_fact(claim))

            nursery.start_soon(claim_all)
            jobs = await submit(asker, 3)
            for job in jobs:
                found = await result(asker, job)
                assert found["claimant"] in {node.peer for node in nodes} and found["text"]
            nursery.cancel_scope.cancel()

    run(body)


def test_clients_and_nodes_with_jobs_disabled_do_none() -> None:
    async def body(world: World) -> None:
        (node,) = nodes = await servers(world, 1, jobs=False)
        asker = await client(world, nodes)
        (job,) = await submit(asker)
        await trio.sleep(200)
        for each in (node, asker):
            listed = await each.ask("job_list")
            assert listed["jobs"][0]["state"] == "open" and not listed["does_jobs"]
        assert not node.node.state.views.jobs.claims_of(job)

    run(body)


def test_a_daemon_withdraws_its_claims_when_jobs_are_disabled() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        members = nodes[1].node.state.views.members
        await trio.sleep(15)
        first = members.get(nodes[0].peer)
        assert first is not None and first.jobs == ("embed", "evaluate", "finetune", "generate")
        await nodes[0].host.crash()
        host = world.hosts["n0"]
        host.equip(host)
        host.up = True
        await host.start(model="tiny", layers=(0, 6), bootstrap=[nodes[1]], jobs=False)
        await trio.sleep(30)
        first = members.get(nodes[0].peer)
        assert first is not None and first.jobs == ()

    run(body)


@pytest.mark.parametrize(("way", "ended", "most"), [("stop", 4, 30), ("crash", 1, 60)])
def test_a_node_that_ends_leaves_its_job_to_others_soon(way: str, ended: int, most: int) -> None:
    """At once if the node was stopped; if it was killed, once that is noticed."""

    async def body(world: World) -> None:
        nodes = await servers(world, 2, profile=SLOW)
        asker = await client(world, nodes)
        (job,) = await submit(asker, max_tokens=100)
        await trio.sleep(6)
        (at,) = [node for node in nodes if node.node.working.worker.current_job]
        (other,) = [node for node in nodes if node is not at]
        began = trio.current_time()
        await (at.stop() if way == "stop" else at.host.crash())
        assert trio.current_time() - began < ended
        found = await result(asker, job)
        assert found["claimant"] == other.peer
        assert trio.current_time() - began < most

    run(body)


def test_a_restarted_node_goes_on_from_its_finished_rows() -> None:
    async def body(world: World) -> None:
        (node,) = await servers(world, 1, profile=SLOW)
        asker = await client(world, [node])
        rows = [{"prompt": f"row {number}", "max_tokens": 4 + 12 * number} for number in range(8)]
        files, path = asker.node.host.files, Path("/home/rows.jsonl")
        files.make_folder(path.parent)
        files.write(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        sent = await asker.ask("job_submit", model="tiny", file=str(path), raw=True, seed=3)
        outputs = node.node.working.tools.shop.outputs
        while sum(len(p.lines or {}) for p in (outputs.pieces or {}).values()) < 4:  # noqa: ASYNC110
            await trio.sleep(0.1)
        await node.stop()
        again = await node.host.start(model="tiny", layers=(0, 6), bootstrap=[asker], profile=SLOW)
        gateway, asked = again.node.compute.gateway, list[str | None]()
        generate = gateway.generate

        async def counted(request: GenerateRequest, emit: Any) -> Any:
            asked.append(request.prompt)
            return await generate(request, emit)

        gateway.generate = counted  # type: ignore[method-assign]
        found = await result(asker, sent["jobs"][0])
        assert sorted(filter(None, asked)) == [f"row {number}" for number in range(4, 8)]
        lines = [json.loads(line) for line in found["text"].splitlines()]
        for line, row in zip(lines, rows, strict=True):
            said = await again.ask("run", model="tiny", raw=True, seed=3, **row)
            assert line["text"] == said["text"]

    run(body)


def test_a_fine_tuning_is_submitted_as_a_job() -> None:
    """With the other nodes that have it, or the reason why none has."""

    async def body(world: World) -> None:
        nodes = await servers(world, 1)
        asker = await client(world, nodes)
        files, path = asker.node.host.files, Path("/home/texts.jsonl")
        files.make_folder(path.parent)
        files.write(path, b"".join(b'{"text": "once upon a time %d"}\n' % n for n in range(20)))
        ask: dict[str, Any] = {"model": "tiny", "path": str(path), "moves": True, "steps": 500}
        with pytest.raises(ControlError) as past:
            await asker.ask("tuning_begin", **ask, deadline=5)
        assert past.value.code == "deadline-past" and past.value.hint
        with pytest.raises(ControlError) as stays:
            await asker.ask("tuning_begin", **ask | {"moves": False}, priority=9)
        assert stays.value.code == "stays"
        begun = await asker.ask("tuning_begin", **ask, priority=9, deadline=4_000_000_000)
        assert begun["lack"] is None and begun["tuning"]["job"]
        (listed,) = (await nodes[0].ask("job_list"))["jobs"]
        assert (listed["job"], listed["kind"]) == (begun["tuning"]["job"], "finetune")
        assert (listed["priority"], listed["deadline"]) == (9, 4_000_000_000)
        await nodes[0].host.crash()
        await trio.sleep(60)
        again = await asker.ask("tuning_begin", **ask, name="again")
        assert again["lack"]["code"] == "not-replicated" and again["lack"]["hint"]

    run(body)


def test_usage_is_counted_by_the_server_and_survives_restarts() -> None:
    async def body(world: World) -> None:
        (node,) = nodes = await servers(world, 1)
        asker = await client(world, nodes)
        for _ in range(2):
            said = await asker.ask("run", model="tiny", prompt="Once", max_tokens=20)
        await node.ask("run", model="tiny", prompt="Once", max_tokens=20)
        await node.stop()
        again = await node.host.start(model="tiny", layers=(0, 6), bootstrap=[asker])
        await again.serving()
        await asker.until(lambda status: status["peers"] == 1)
        await trio.sleep(3)
        await asker.ask("run", model="tiny", prompt="Once", max_tokens=20)
        await trio.sleep(USAGE_PACE + 10)
        (row,) = (await asker.ask("usage"))["usage"]
        assert (row["client"], row["provider"]) == (asker.peer, node.peer)
        assert (row["requests"], row["tokens_out"]) == (3, 60)
        assert row["tokens_in"] == 3 * said["prompt_tokens"] and row["busy_s"] > 0
        assert row["model"] == "tiny"
        assert (await again.ask("usage"))["usage"] == [row]

    run(body)


async def two_stages(world: World) -> tuple[DaemonHandle, DaemonHandle, DaemonHandle]:
    """Return two stages, of which the first does jobs, and the author of jobs."""
    first = await world.host("n0").start(model="tiny", layers=(0, 3))
    second = await world.host("n1").start(
        bootstrap=[first], model="tiny", layers=(3, 6), jobs=False
    )
    for node in (first, second):
        await node.serving()
    return first, second, await client(world, [first, second])


def test_a_job_is_charged_to_its_author_at_every_stage() -> None:
    """The stage that did not claim a job may hear of it only after it has computed for it."""

    async def body(world: World) -> None:
        first, second, asker = nodes = await two_stages(world)
        for job in await submit(asker, 20, max_tokens=4):
            assert (await result(asker, job))["claimant"] == first.peer
        await trio.sleep(USAGE_PACE + 30)
        for node in nodes:
            rows = (await node.ask("usage"))["usage"]
            assert {row["client"] for row in rows} == {asker.peer}
            had = {row["provider"]: (row["requests"], row["tokens_out"]) for row in rows}
            assert had == {first.peer: (20, 80), second.peer: (20, 80)}

    run(body)


def test_rows_of_evaluate_are_charged_to_their_author() -> None:
    """The stages that read their texts are asked by the worker, for the author's job."""

    async def body(world: World) -> None:
        first, second, asker = await two_stages(world)
        for job in await submit(asker, 4, kind="evaluate"):
            found = await result(asker, job)
            assert (found["claimant"], found["error"]) == (first.peer, None)
        await trio.sleep(USAGE_PACE + 30)
        rows = (await asker.ask("usage"))["usage"]
        assert {(row["client"], row["requests"] > 0) for row in rows} == {(asker.peer, True)}
        assert {row["provider"] for row in rows} == {first.peer, second.peer}

    run(body)


@pytest.mark.ci
def test_hundreds_of_jobs_of_one_author_delay_no_other_author(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most in ("FIRST_ROWS", "ROWS_AT_ONCE"):  # so that most of them wait
        monkeypatch.setattr(f"shoal.tasks.jobs.defaults.{most}", 1)

    """As many as a feed holds, each of some seconds, and many that are invalid."""

    async def body(world: World) -> None:
        nodes = await servers(world, 2, profile=SLOW)
        stranger = await client(world, nodes, "stranger")
        asker = await client(world, nodes)
        for number in range(700):
            nonce = number.to_bytes(4)
            spec = b"rubbish" if number % 10 == 0 else b""
            job = Job(job_id(stranger.peer, nonce), stranger.peer, "generate", spec or SPEC)
            stranger.node.state.set("jobs", job.id, job_fact(job, nonce))
        await trio.sleep(20)
        assert len(nodes[0].node.state.views.jobs.waiting[stranger.peer]) > 600
        for _ in range(2):
            began = trio.current_time()
            (job_of_another,) = await submit(asker)
            found = await result(asker, job_of_another)
            assert found["text"] and trio.current_time() - began < 25
        assert done(nodes) > 6, "the stranger has its turns as well"

    run(body)


@pytest.mark.parametrize("how", ["full", *in_ci("read-only")])
def test_a_bad_disk_ends_no_daemon_and_loses_no_job(how: str) -> None:
    """First a server's disk, then the author's: the server does no jobs, the author waits."""

    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        asker = await client(world, nodes)

        def spoil(node: DaemonHandle, bad: bool) -> None:
            disk = node.host.disk
            assert disk is not None
            if how == "full":
                disk.spec = replace(disk.spec, capacity=disk.used if bad else 10**12)
            else:
                disk.read_only = bad

        spoil(nodes[0], True)
        jobs = await submit(asker, 4, max_tokens=700)
        for job in jobs:
            found = await result(asker, job)
            assert found["claimant"] == nodes[1].peer and found["text"]
        spoil(nodes[0], False)
        await trio.sleep(30)
        jobs = await submit(asker, 4, max_tokens=700)
        spoil(asker, True)
        await trio.sleep(200)
        for job in jobs:
            with pytest.raises(ControlError) as raised:
                await asker.ask("job_result", job=job)
            assert raised.value.code == "not-done"
        spoil(asker, False)
        for job in jobs:
            assert (await result(asker, job))["text"]
        assert all(node.host.running for node in (*nodes, asker))

    run(body)
