"""Sealed jobs in whole daemons of a private group, on simulated hosts: nothing that others store
has a text in it."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.disk.disk import Folder
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from tests.marks import in_ci
from tests.netsim.daemons.test_groups import found, join, newest, number_at, roles_at, run, until
from tests.netsim.daemons.test_jobs import client, done, servers

WORD = "zephyranthes"
PROMPT = f"Once upon a {WORD}"
SERVES: dict[str, Any] = {"engine": True, "model": "tiny", "layers": (0, 6)}


async def swarm(world: World) -> tuple[list[DaemonHandle], DaemonHandle]:
    """Start a founder and two operators, which serve the model, and a client of the group."""
    nodes = [await found(world)]
    for number in (1, 2):
        nodes.append(await join(world, f"n{number}", nodes[0], **SERVES))
    asker = await join(world, "asker", nodes[0], "client")
    every = [*nodes, asker]
    await until(lambda: all(len(roles_at(node)) == len(every) for node in every))
    await until(lambda: all(newest(node) for node in every))
    for node in nodes[1:]:
        await node.serving()
    await trio.sleep(20)  # every node has published its state
    return nodes, asker


def stored(node: DaemonHandle) -> dict[str, bytes]:
    """Return the content of all files on the disk of a node, by path."""
    disk = node.host.disk
    assert disk is not None

    def walk(folder: Folder, path: str) -> Iterator[tuple[str, bytes]]:
        if folder.fixed and path.startswith("/models"):
            return
        for name, each in folder.names.items():
            if isinstance(each, Folder):
                yield from walk(each, f"{path}/{name}")
            else:
                yield f"{path}/{name}", bytes(each.read(0, each.size))

    return dict(walk(disk.root, ""))


SEALED = (("outputs", 0), ("all", 0), (None, 200), ("outputs", 200))


def with_word(node: DaemonHandle, word: str) -> list[str]:
    """Return the paths of all files that have a text, as JSON writes it."""
    said = json.dumps(word, ensure_ascii=False)[1:-1].encode()
    return [path for path, data in stored(node).items() if said in data]


async def submit(node: DaemonHandle, seal: str | None = "all", rows: int = 0) -> str:
    ask: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "seed": 7, "raw": True, "seal": seal}
    if rows:
        path = Path("/rows.jsonl")
        lines = "".join(json.dumps({"prompt": f"{PROMPT} {n}"}) + "\n" for n in range(rows))
        await node.node.host.offload(node.node.host.files.write, path, lines.encode())
        ask["file"] = str(path)
    else:
        ask["prompts"] = [PROMPT]
    (job,) = (await node.ask("job_submit", **ask))["jobs"]
    return str(job)


async def result(node: DaemonHandle, job: str) -> dict[str, Any]:
    return await node.ask("job_result", job=job, until_done=True)


async def answers_of(asker: DaemonHandle, job: str, rows: int) -> list[str]:
    """Return the texts of a job of many rows."""
    out, host = Path("/out.jsonl"), asker.node.host
    await asker.ask("job_output", job=job, path=str(out), until_done=True)
    lines = (await host.offload(partial(host.files.read, out, limit=2**22))).splitlines()
    answers = [json.loads(line) for line in lines]
    assert [row["line"] for row in answers] == [*range(1, rows + 1)]
    assert not any("fingerprint" in row for row in answers)
    return [row["text"] for row in answers]


@pytest.mark.parametrize(
    ("seal", "rows"),
    [(None, 0), ("all", 200), *in_ci(*SEALED)],
)
def test_the_disks_of_others_have_no_text_of_a_sealed_job(seal: str | None, rows: int) -> None:
    """Texts that are not sealed are on the disk of each node that keeps the job, or its blob."""

    async def body(world: World) -> None:
        nodes, asker = await swarm(world)
        job = await submit(asker, seal, rows)
        listed = await nodes[1].ask("job_show", job=job)
        assert listed["abstract"] == ("" if seal == "all" else f"{PROMPT}{' 0' * (rows > 0)}")
        shown = await asker.ask("job_show", job=job)
        assert shown["abstract"].startswith(PROMPT) and shown["spec"]["sealed"] == (seal or "")
        assert bool(shown["spec"]["blob"]) == (rows > 0)
        if rows:
            texts = await answers_of(asker, job, rows)
        else:
            texts = [(await result(asker, job))["text"]]
        await trio.sleep(5)
        keepers = [node for node in nodes if with_word(node, WORD)]
        readers = [node for node in nodes if any(with_word(node, text) for text in texts[:20])]
        assert bool(keepers) == (seal != "all") and bool(readers) == (seal is None)
        assert with_word(asker, texts[0]), "the author has its result"
        assert done(nodes) >= 1

    run(body)


def test_the_author_is_off_while_its_job_is_done() -> None:
    async def body(world: World) -> None:
        nodes, asker = await swarm(world)
        job = await submit(asker)
        await asker.stop()
        await trio.sleep(60)
        assert done(nodes) == 1
        again = await asker.host.start(engine=False, bootstrap=[nodes[0].address])
        found = await result(again, job)
        assert found["state"] == "done" and found["text"]
        shown = await again.ask("job_show", job=job)
        assert shown["abstract"] == PROMPT

    run(body)


def test_a_removed_member_cannot_read_later_jobs() -> None:
    """The removed member still has the keys of before."""

    async def body(world: World) -> None:
        nodes, asker = await swarm(world)
        out, others = nodes[2], [nodes[0], nodes[1], asker]
        first = await submit(asker)
        assert (await result(asker, first))["text"]
        number = number_at(asker)
        await nodes[0].ask("group_revoke", peer=out.peer)
        await until(lambda: all(number_at(node) > number for node in others))
        job = await submit(asker)
        standing = nodes[1].node.state.views.jobs.get(job)
        assert standing is not None and standing.job is not None
        assert nodes[1].node.working.tools.seals.has_key(standing.job.spec)
        assert not out.node.working.tools.seals.has_key(standing.job.spec)
        assert (await result(asker, job))["claimant"] == nodes[1].peer

    run(body)


def test_without_a_group_only_outputs_are_sealed_and_only_on_request() -> None:
    async def body(world: World) -> None:
        nodes = await servers(world, 2)
        asker = await client(world, nodes)
        with pytest.raises(ControlError) as raised:
            await submit(asker)
        assert raised.value.code == "no-group" and not await asker.node.working.own.desk.own()
        job = await submit(asker, "outputs")
        shown = await nodes[0].ask("job_show", job=job)
        assert shown["abstract"] == PROMPT and shown["spec"]["sealed"] == "outputs"
        text = (await result(asker, job))["text"]
        assert text and not any(with_word(node, text) for node in nodes)

    run(body)
