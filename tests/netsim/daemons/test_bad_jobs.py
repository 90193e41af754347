"""Errors in jobs and fine-tunings have a code and a hint, and no accepted work is lost."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.state.views.jobs import claim_fact, new_claim
from shoal.tasks.jobs.defaults import ROW_BYTES
from tests.netsim.daemons.test_jobs import client, result, run, servers

FILE = Path("/home/rows.jsonl")
GOOD = b'{"prompt": "once", "text": "once upon a time"}\n'


def put(node: DaemonHandle, data: bytes) -> str:
    files = node.node.host.files
    files.make_folder(FILE.parent)
    files.write(FILE, data)
    return str(FILE)


async def refused(node: DaemonHandle, op: str, data: bytes, **more: Any) -> ControlError:
    """Ask for what a daemon refuses. Return the error, after checking that nothing is left."""
    word = "file" if op == "job_submit" else "path"
    ask = {"model": "tiny", word: put(node, data), **more}
    with pytest.raises(ControlError) as raised:
        await node.ask(op, **ask)
    assert raised.value.hint, raised.value.message
    assert not (await node.ask("job_list", mine=True))["jobs"]
    assert not (await node.ask("tunings"))["tunings"]
    return raised.value


LONG = json.dumps({"prompt": "x" * ROW_BYTES}).encode() + b"\n"
REFUSED: list[tuple[str, bytes, dict[str, Any], str]] = [
    ("job_submit", b"", {}, "no-rows"),
    ("job_submit", b"\n \n", {}, "no-rows"),
    ("job_submit", b'{"prompt": ""}\n{}\n', {}, "bad-rows"),
    ("job_submit", LONG, {}, "bad-rows"),
    ("job_submit", GOOD * (2**26 // len(GOOD) + 1), {}, "input-too-large"),
    ("job_submit", GOOD * 20_000, {}, "too-many-rows"),
    ("job_submit", GOOD, {"deadline": 5}, "deadline-past"),
    ("tuning_begin", b"", {}, "no-data"),
    ("tuning_begin", b'{"text": ""}\n{"text": ""}\n', {}, "no-data"),
    ("tuning_begin", b"broken\n", {}, "no-data"),
    ("tuning_begin", GOOD, {"deadline": 5, "moves": True}, "deadline-past"),
    ("tuning_begin", GOOD, {"length": 2048}, "bad-length"),
]


@pytest.mark.parametrize(("op", "data", "more", "code"), REFUSED)
def test_what_cannot_be_done_is_refused_with_a_hint(
    op: str, data: bytes, more: dict[str, Any], code: str
) -> None:
    async def body(world: World) -> None:
        (node,) = await servers(world, 1)
        assert (await refused(node, op, data, **more)).code == code

    run(body)


def test_rows_that_exceed_the_quota_are_refused() -> None:
    async def body(world: World) -> None:
        node = await world.host("a").start(model="tiny", layers=(0, 6), disk=24 << 20)
        await node.serving()
        rows = b"".join(b'{"prompt": "%d %s"}\n' % (n, b"x" * 60_000) for n in range(900))
        assert (await refused(node, "job_submit", rows)).code == "quota-full"

    run(body)


def test_a_broken_line_and_a_long_one_are_named_and_the_others_run() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 1)
        asker = await client(world, nodes)
        path = put(asker, GOOD + b"broken\n" + GOOD + LONG + GOOD)
        sent = await asker.ask("job_submit", model="tiny", file=path, max_tokens=4)
        assert [line["line"] for line in sent["broken"]] == [2, 4]
        found = await result(asker, sent["jobs"][0])
        rows = [json.loads(line) for line in found["text"].splitlines()]
        assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
        assert [row.get("error") for row in rows] == [
            None, "bad-row", None, "row-too-long", None,
        ]  # fmt: skip

    run(body)


def test_a_worker_that_claims_and_never_answers_loses_no_job() -> None:
    """The worker is linked and lives, so only its lack of progress shows the fault."""

    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        silent = nodes[1]
        asker = await client(world, nodes)
        worker = silent.node.working.worker
        worker.begin_some = lambda nursery: False  # type: ignore[method-assign]
        began = trio.current_time()
        path = put(asker, GOOD * 3)
        sent = await asker.ask("job_submit", model="tiny", file=path, max_tokens=4)
        (job,) = sent["jobs"]
        silent.node.state.set("claims", job, claim_fact(new_claim(silent.peer, job, 9)))
        found = await result(asker, job)
        assert found["claimant"] == nodes[0].peer and found["rows_failed"] == 0
        assert trio.current_time() - began < 300

    run(body)


def test_a_submitter_that_vanishes_before_its_rows_are_elsewhere_loses_nothing() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 1)
        asker = await client(world, nodes)
        await nodes[0].stop()
        await trio.sleep(60)
        rows = b"".join(b'{"prompt": "%d %s"}\n' % (n, b"x " * 400) for n in range(12))
        sent = await asker.ask("job_submit", model="tiny", file=put(asker, rows), max_tokens=4)
        assert not sent["replicated"] and sent["lack"]["code"] == "not-replicated"
        assert "keep this node running" in sent["lack"]["hint"]
        await asker.host.crash()
        again = await nodes[0].host.start(model="tiny", layers=(0, 6))
        await again.serving()
        await trio.sleep(600)
        asker = await asker.host.restart()
        found = await result(asker, sent["jobs"][0])
        lines = [json.loads(line) for line in found["text"].splitlines()]
        assert [line["line"] for line in lines] == list(range(1, 13))
        assert all(line["text"] for line in lines)

    run(body)
