"""Job and usage operations of the control socket, on simulated daemons."""

import time
from typing import Any

import msgpack
import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.control.messages.encoding import encode
from shoal.node.control.server import Operation
from shoal.node.defaults import JOBS_AT_ONCE, JOBS_COUNTED, USAGE_SHOWN
from shoal.node.errors import ControlError
from shoal.state.defaults import WRITE_HOLD
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job, job_fact, job_id
from shoal.state.views.usage import UsageCount, usage_fact, usage_key
from shoal.tasks.usage.accounting import others_key
from tests.tasks.jobs.fake_state import AUTHOR, OTHER

ROOT = "ab" * 32


async def pair(world: World, **more: Any) -> list[DaemonHandle]:
    server = await world.host("a").start(model="tiny", layers=(0, 6), **more)
    asker = await world.host("b").start(bootstrap=[server], engine=False)
    await server.serving()
    await trio.sleep(WRITE_HOLD + 10)
    return [server, asker]


async def code_of(node: DaemonHandle, op: str, **more: Any) -> str:
    with pytest.raises(ControlError) as raised:
        await node.ask(op, **more)
    return raised.value.code


async def test_job_from_submission_to_result(world: World) -> None:
    server, asker = await pair(world)
    answer = await asker.ask(
        "job_submit", model="tiny", prompts=["One", "Two"], max_tokens=8, stop=["zzz"], top_k=3
    )
    one, two = answer["jobs"]
    shown = await asker.ask("job_show", job=one[:9])
    assert (shown["job"], shown["model"], shown["abstract"]) == (one, "tiny", "One")
    assert shown["spec"]["max_tokens"] == 8 and shown["spec"]["stop"] == ["zzz"]
    assert shown["spec"]["root"] == answer["root"]
    found = await asker.ask("job_result", job=two, until_done=True)
    assert found["state"] == "done" and found["tokens"] == 8 and found["text"]
    await asker.ask("job_result", job=one, until_done=True)
    assert (await asker.ask("status"))["work"]["jobs"] == 0
    for node in (asker, server):
        listed = await node.ask("job_list", state="done")
        assert {item["job"] for item in listed["jobs"]} == {one, two}
        assert listed["does_jobs"] == (node is server) and listed["more"] == 0
    theirs = await server.ask("job_show", job=one)
    (claim,) = theirs["claims"]
    assert (claim["claimant"], claim["done"], claim["refused"]) == (server.peer, True, False)
    assert theirs["author"] == asker.peer
    assert (await server.ask("job_list", mine=True))["jobs"] == []
    await trio.sleep(60)
    kept = await asker.ask("job_show", job=one)
    assert kept["spec"] is None and kept["came"] and kept["claims"] == []


async def test_the_rows_of_all_jobs_of_a_request_are_replicated(world: World) -> None:
    server, asker = await pair(world)
    prompts = [letter * 7000 for letter in "ab"]  # too long for the entries
    answer = await asker.ask("job_submit", model="tiny", prompts=prompts, max_tokens=1)
    shown = [await asker.ask("job_show", job=job) for job in answer["jobs"]]
    blobs = {each["spec"]["blob"] for each in shown}
    assert answer["replicated"] and len(blobs) == 2
    assert blobs <= server.node.library.blobs.roots()


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": []},
        {"prompts": "One"},
        {"prompts": ["x"] * (JOBS_AT_ONCE + 1)},
        {"prompts": [5]},
        {"prompts": [""]},
        {"model": ""},
        {"max_tokens": 0},
        {"max_tokens": 4097},
        {"file": "/x"},
        {"prompts": None},
        {"kind": "nothing"},
        {"priority": 10},
        {"temperature": -1},
        {"stop": [""]},
        {"seed": -1},
    ],
)
async def test_malformed_job_is_refused(changes: dict[str, Any], world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    asked = {"model": "tiny", "prompts": ["One"], **changes}
    assert await code_of(node, "job_submit", **asked) == "bad-request"


async def test_invalid_submissions_are_refused(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    assert await code_of(node, "job_submit", model="nobody", prompts=["x"]) == "unknown-model"
    long = ["x", "y" * 70_000]
    assert await code_of(node, "job_submit", model="tiny", prompts=long) == "bad-rows"
    asked = {"model": "tiny", "prompts": ["x"]}
    assert await code_of(node, "job_submit", **asked, deadline=1000) == "deadline-past"
    for file, code in (("/none", "no-file"), ("/", "unreadable")):
        assert await code_of(node, "job_submit", model="tiny", file=file) == code
    assert (await node.ask("job_list"))["jobs"] == []
    assert await code_of(node, "job_list", state="lost") == "bad-request"
    for op in ("job_show", "job_result", "job_cancel"):
        assert await code_of(node, op, job="ab" * 32) == "unknown-job"
        assert await code_of(node, op, job="x" * 65) == "bad-request"


async def test_full_feed_is_an_error_and_loses_no_job(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(WRITE_HOLD + 2)
    taken: list[str] = []
    prompts = ["x" * 5800] * 20
    while True:
        try:
            answer = await node.ask("job_submit", model="tiny", prompts=prompts)
        except ControlError as error:
            assert error.code == "jobs-full" and error.hint and "cancel" in error.hint
            break
        taken += answer["jobs"]
    listed = await node.ask("job_list", mine=True)
    assert {item["job"] for item in listed["jobs"]} == set(taken) and taken
    await node.ask("job_cancel", job=taken[0])
    await node.ask("job_submit", model="tiny", prompts=prompts[:1])


async def test_jobs_of_strangers_are_listed_with_limits_and_not_trusted(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    view = node.node.state.views.jobs
    for number in range(3000):
        nonce = number.to_bytes(4)
        job = Job(job_id(AUTHOR, nonce), AUTHOR, "prompt", spec=b"rubbish")
        view.changed(FeedName(AUTHOR, "jobs", 0), job.id, job_fact(job, nonce))
    listed = await node.ask("job_list")
    assert (len(listed["jobs"]), listed["more"]) == (1000, 2000)
    assert listed["jobs"][0]["model"] is None
    done = await node.ask("job_list", state="done")
    assert (done["jobs"], done["more"]) == ([], 0)
    assert await turns_during(node.node.control.operations["job_list"]) > 2000 // JOBS_COUNTED
    shown = await node.ask("job_show", job=listed["jobs"][0]["job"])
    assert shown["spec"] is None and shown["author"] == AUTHOR


async def test_listing_expensive_jobs_does_not_block_the_event_loop(
    world: World,
) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    view = node.node.state.views.jobs
    slow = msgpack.packb({"root": ROOT, "prompt": b"x", "y": [{}] * 7900})
    for number in range(256):
        nonce = number.to_bytes(4)
        job = Job(job_id(AUTHOR, nonce), AUTHOR, "prompt", spec=slow)
        view.changed(FeedName(AUTHOR, "jobs", 0), job.id, job_fact(job, nonce))
    longest, last = 0.0, time.process_time()

    async def another() -> None:
        nonlocal longest, last
        while True:
            longest, last = max(longest, time.process_time() - last), time.process_time()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        await node.node.control.operations["job_list"]({}, _emit)
        nursery.cancel_scope.cancel()
    assert longest < 0.05


async def turns_during(operation: Operation) -> int:
    """Count how often another task runs during this operation."""
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        await operation({}, _emit)
        nursery.cancel_scope.cancel()
    return turns


async def _emit(_: object) -> None:
    raise AssertionError("nothing comes before the answer")


async def test_own_jobs_are_listed_newest_first_with_totals_and_pages(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(WRITE_HOLD + 2)
    submitted: list[str] = []
    for batch in range(3):
        prompts = [f"{batch}.{number}" for number in range(4)]
        submitted += (await node.ask("job_submit", model="tiny", prompts=prompts))["jobs"]
    view = node.node.state.views.jobs
    job = Job(job_id(AUTHOR, b"x"), AUTHOR, "prompt", spec=b"rubbish")
    view.changed(FeedName(AUTHOR, "jobs", 0), job.id, job_fact(job, b"x"))
    listed = await node.ask("job_list")
    assert [item["job"] for item in listed["jobs"]] == [*reversed(submitted), job.id]
    assert listed["totals"] == {"open": 13, "claimed": 0, "done": 0, "failed": 0}
    assert listed["jobs"][0]["made"] and listed["jobs"][-1]["made"] is None
    places = [item["place"] for item in listed["jobs"][:-1]]
    assert places[-1] == 1 and places == sorted(places, reverse=True)  # the oldest comes first
    assert places[0] == 13  # the stranger's job comes before this node's second one
    assert "place" not in listed["jobs"][-1]
    assert (listed["share"], listed["users"]) == (0.5, 1)
    page = await node.ask("job_list", mine=True, limit=5, offset=4)
    assert [item["job"] for item in page["jobs"]] == list(reversed(submitted))[4:9]
    assert page["more"] == 3
    assert await code_of(node, "job_list", limit=0) == "bad-request"
    taken = await node.ask("job_cancel", all=True)
    assert set(taken["jobs"]) == set(submitted) and taken["results"] == 0
    assert (await node.ask("job_list", mine=True))["jobs"] == []


async def test_status_shows_jobs_that_run_here_and_those_submitted_from_here(
    world: World,
) -> None:
    server, asker = await pair(world)
    answer = await asker.ask("job_submit", model="tiny", prompts=["One"], max_tokens=400)
    (job,) = answer["jobs"]
    await server.until(lambda status: status["work"]["doing"])
    here = (await server.ask("status"))["work"]
    mine = {"job": job, "kind": "generate", "author": asker.peer, "pieces": 1}
    assert here["doing"] == [mine] and here["jobs"] == 0
    there = (await asker.ask("status"))["work"]
    assert (there["jobs"], there["rows"], there["rows_done"], there["doing"]) == (1, 1, 0, [])
    await asker.ask("job_result", job=job, until_done=True)
    await trio.sleep(1)
    assert (await server.ask("status"))["work"]["doing"] == []
    assert (await asker.ask("status"))["work"]["jobs"] == 0


async def test_results_of_many_jobs_come_as_events(world: World) -> None:
    _, asker = await pair(world)
    asked = {"model": "tiny", "max_tokens": 4}
    jobs = (await asker.ask("job_submit", prompts=["é" * 200, "Two"], **asked))["jobs"]
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(encode(event))

    operation = asker.node.control.operations["job_results"]
    unknown = "cd" * 32
    await operation({"jobs": [*jobs, unknown]}, emit)
    assert [event["result"]["error"] for event in events if event["event"] == "result"] == [
        "not-done", "not-done", "unknown-job",
    ]  # fmt: skip
    events.clear()
    assert encode(await operation({"until_done": True}, emit)) == {"jobs": 2, "failed": 0}
    assert events[0] == {"event": "jobs", "jobs": jobs}
    results = {e["result"]["job"]: e["result"] for e in events if e["event"] == "result"}
    assert results[jobs[0]]["prompt"] == "é" * 200 and results[jobs[0]]["text"]
    assert events[-1] == {"event": "progress", "done": 2, "failed": 0}
    await trio.sleep(60)
    assert not asker.node.state.views.jobs.of(asker.peer), "the jobs are removed from the feed"
    events.clear()
    await operation({}, emit)
    assert [e["result"]["prompt"] for e in events[1:3]] == ["é" * 200, "Two"]
    assert await code_of(asker, "job_results", jobs=["x"]) == "bad-request"


async def test_waiting_client_is_told_of_a_cancelled_job(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(WRITE_HOLD + 2)
    await node.ask("job_submit", model="tiny", prompts=["One", "Two"])
    events: list[Any] = []

    async def emit(event: Any) -> None:
        events.append(encode(event))

    results: Any = node.node.control.operations["job_results"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(results, {"until_done": True}, emit)
        await trio.sleep(1)
        await node.ask("job_cancel", all=True)
    errors = [event["result"]["error"] for event in events if event["event"] == "result"]
    assert errors == ["unknown-job", "unknown-job"]


async def test_waiting_client_does_not_delay_shutdown(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(WRITE_HOLD + 2)
    await node.ask("job_submit", model="tiny", prompts=["One"])
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert await code_of(node, "job_results", until_done=True) == "stopping"

        nursery.start_soon(wait)
        await trio.sleep(1)
        began = trio.current_time()
        await node.stop()
        assert trio.current_time() - began < 5


async def test_usage_is_bounded_whatever_other_nodes_report(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    view, feed = node.node.state.views.usage, FeedName(OTHER, "usage", 0)
    for number in range(5 * USAGE_SHOWN):
        count = UsageCount(1, number, number, 1)
        view.changed(feed, usage_key(AUTHOR, f"{number:064x}"), usage_fact(count))
    answer = await node.ask("usage")
    most = 5 * USAGE_SHOWN - 1
    assert [row["tokens_in"] for row in answer["usage"]] == [
        most - number for number in range(USAGE_SHOWN)
    ]
    assert answer["more"] == 4 * USAGE_SHOWN
    assert await turns_during(node.node.control.operations["usage"]) >= 3


async def test_usage_lists_client_provider_and_model(world: World) -> None:
    node = await world.host("a").start(engine=False)
    await trio.sleep(1)
    view, feed = node.node.state.views.usage, FeedName(OTHER, "usage", 0)
    view.changed(feed, usage_key(AUTHOR, ROOT), usage_fact(UsageCount(2, 30, 40, 5000)))
    view.changed(feed, others_key(OTHER), usage_fact(UsageCount(9, 1, 1, 1)))
    answer = await node.ask("usage")
    first, second = answer["usage"]
    assert first == {
        "client": AUTHOR, "provider": OTHER, "root": ROOT, "model": None,
        "requests": 2, "tokens_in": 30, "tokens_out": 40, "busy_s": 5.0,
    }  # fmt: skip
    assert (second["client"], second["root"], second["requests"]) == (None, None, 9)
    assert answer["more"] == 0 and answer["own"] == node.peer
    assert answer["checked"] == [{"provider": OTHER, "seconds": 0.0, "lied": False}]
    trust = node.node.working.own.checks.trust
    trust.note_right(OTHER, 2, 90.0)
    assert (await node.ask("usage"))["checked"][0]["seconds"] == 90.0
    trust.note_lie(OTHER)
    (checked,) = (await node.ask("usage"))["checked"]
    assert (checked["seconds"], checked["lied"]) == (0.0, True)
