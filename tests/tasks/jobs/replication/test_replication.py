"""Tests of the replication of jobs: a node confirms only what it really stores."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job, Jobs, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.inference.courier import Courier
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.replication.replication import REPLICATE, JobReplication, ReplicationTerms
from shoal.tasks.jobs.shelf import Shelves
from shoal.tasks.jobs.spec import JobSpec, pack_spec
from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Call, Handler, Refusal, Reply
from shoal.transport.rates import Rate, Rates
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER, FakeHost, FakeShelf
from tests.tasks.jobs.quotas import MIB, shelf_node

pytestmark = pytest.mark.trio
NONCE = b"n" * 16
JOB, BLOB = job_id(AUTHOR, NONCE), "cd" * 32
MODEL = "ab" * 32
SPEC = pack_spec(JobSpec(MODEL, b'{"prompt": "hi"}'))


class FakeCourier:
    """Calls between two nodes of one test."""

    def __init__(self) -> None:
        self.nodes: dict[PeerId, Node] = {}
        self.asked: list[PeerId] = []
        self.handler: Handler | None = None

    def handle(self, method: str, handler: Handler) -> None:
        self.handler = handler

    async def meet(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()

    async def call(
        self, peer: PeerId, method: str, header: Mapping[str, object], *, timeout: float
    ) -> Reply:
        self.asked.append(peer)
        assert method == REPLICATE
        if peer not in self.nodes:
            raise LinkClosed("unreachable", "no link")
        answer = await self.nodes[peer].hear(AUTHOR, dict(header))
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer


class Node:
    def __init__(self, helpers: list[PeerId] | None = None, shelf: Shelves | None = None) -> None:
        self.jobs, self.shelf, self.courier = Jobs(), FakeShelf(), FakeCourier()
        self.kept_for = {AUTHOR}
        self.is_alone = True
        self.serving = set[PeerId]()
        self.replication = JobReplication(
            cast(Host, FakeHost()),
            cast(Courier, self.courier),
            self.jobs,
            shelf or self.shelf,
            ReplicationTerms(
                lambda: helpers or [],
                lambda: self.is_alone,
                lambda root: self.serving,
                keeps=lambda peer: peer in self.kept_for,
                works_for=lambda root: root == MODEL,
            ),
        )

    def learn(self, spec: bytes = SPEC, **changes: Any) -> None:
        """Receive the job's entry."""
        job = Job(JOB, AUTHOR, "generate", spec, **changes)
        self.jobs.changed(FeedName(AUTHOR, "jobs", 0), JOB, job_fact(job, NONCE))

    async def hear(self, peer: PeerId, header: dict[str, object]) -> Reply | Refusal:
        assert self.courier.handler is not None
        answer = self.courier.handler(Call(peer, header, b""))
        assert not isinstance(answer, Reply | Refusal)
        found = await answer
        assert isinstance(found, Reply | Refusal)
        return found


def asked(**changes: object) -> dict[str, object]:
    return {"job": JOB, "blob": BLOB, "size": 100, **changes}


async def test_a_node_confirms_what_it_has_stored(autojump_clock: object) -> None:
    node = Node()
    node.shelf.blobs[BLOB] = b"x" * 100

    async def later() -> None:
        await trio.sleep(3)
        node.learn()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        assert isinstance(await node.hear(AUTHOR, asked()), Reply)
        assert trio.current_time() >= 3, "only once the job's entry is here"
    assert node.shelf.kept == {BLOB: AUTHOR}


async def test_a_node_does_not_confirm_what_it_lacks(autojump_clock: object) -> None:
    node = Node()
    node.shelf.blobs[BLOB] = b"x" * 100
    answer = await node.hear(AUTHOR, asked())
    assert isinstance(answer, Refusal) and answer.code == "not-stored", "it has no such job"
    assert not node.shelf.kept
    node.learn()
    node.shelf.blobs.clear()
    answer = await node.hear(AUTHOR, asked())
    assert isinstance(answer, Refusal) and answer.code == "not-stored"
    assert isinstance(await node.hear(AUTHOR, {"job": JOB}), Reply), "a job without a blob"


@pytest.mark.parametrize(
    "changes",
    [{"job": "x"}, {"blob": "x"}, {"size": -1}, {"size": defaults.INPUT_BYTES + 1}, {"size": "5"}],
)
async def test_malformed_requests_are_refused(changes: dict[str, object]) -> None:
    node = Node()
    node.learn()
    answer = await node.hear(AUTHOR, asked(**changes))
    assert isinstance(answer, Refusal) and answer.code == "bad-request"


async def test_strangers_and_floods_are_refused(autojump_clock: object) -> None:
    node = Node()
    node.learn()
    node.shelf.blobs[BLOB] = b"x" * 100
    answer = await node.hear(OTHER, asked())
    assert isinstance(answer, Refusal) and answer.code == "no-replica"
    codes = []
    for _ in range(4):
        answer = await node.hear(AUTHOR, asked(size=defaults.INPUT_BYTES))
        codes.append(answer.code if isinstance(answer, Refusal) else "kept")
    assert codes == ["kept", "kept", "busy", "busy"], "64 MiB each, of 128"


def claim(node: Node, peer: PeerId, **changes: Any) -> None:
    """Let a node hear of a peer's claim on the job."""
    said = replace(new_claim(peer, JOB, 1), **changes)
    node.jobs.changed(said.feed, JOB, claim_fact(said))


async def test_only_the_author_and_claimants_have_blobs_kept(autojump_clock: object) -> None:
    node = Node()
    node.kept_for |= {OTHER, ME}
    node.learn()
    node.shelf.blobs[BLOB] = b"x" * 100
    entry: dict[str, object] = {"job": JOB}
    for header in (asked(), entry, asked(size=defaults.INPUT_BYTES)):
        answer = await node.hear(OTHER, header)
        assert isinstance(answer, Refusal) and answer.code == "not-yours"
    assert not node.shelf.kept and not node.shelf.asked

    async def later() -> None:
        await trio.sleep(2)
        claim(node, OTHER)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        assert isinstance(await node.hear(OTHER, asked()), Reply), "its claim may come later"
    answer = await node.hear(OTHER, asked(size=defaults.RESULT_BYTES + 1))
    assert isinstance(answer, Refusal) and answer.code == "not-yours", "no output is so large"
    claim(node, ME, left=True)
    answer = await node.hear(ME, asked())
    assert isinstance(answer, Refusal) and answer.code == "not-yours"
    node.learn(refused=(OTHER,))
    answer = await node.hear(OTHER, asked())
    assert isinstance(answer, Refusal) and answer.code == "not-yours", "the author refuses it"


async def test_blobs_are_kept_only_for_models_of_this_node(autojump_clock: object) -> None:
    for spec in (pack_spec(JobSpec("ef" * 32, b"{}")), b"no spec"):
        node = Node()
        node.learn(spec)
        node.shelf.blobs[BLOB] = b"x" * 100
        answer = await node.hear(AUTHOR, asked())
        assert isinstance(answer, Refusal) and answer.code == "no-replica"
        assert not node.shelf.asked
        assert isinstance(await node.hear(AUTHOR, {"job": JOB}), Reply), "an entry takes no space"


async def test_all_peers_together_have_a_rate(autojump_clock: object) -> None:
    """Identities cost nothing."""
    node, codes = Node(), []
    node.shelf.blobs[BLOB] = b"x"
    for number in range(12):
        who, nonce = Identity.from_seed(bytes([100 + number]) * 32).peer, bytes([number])
        job = Job(job_id(who, nonce), who, "generate", SPEC)
        node.kept_for.add(who)
        node.jobs.changed(FeedName(who, "jobs", 0), job.id, job_fact(job, nonce))
        answer = await node.hear(who, asked(job=job.id, size=defaults.INPUT_BYTES))
        codes.append(answer.code if isinstance(answer, Refusal) else "kept")
    assert codes == ["kept"] * 8 + ["busy"] * 4


async def test_strangers_do_not_use_up_the_total_rate(autojump_clock: object) -> None:
    node = Node()
    node.learn()
    for number in range(12):
        who = Identity.from_seed(bytes([100 + number]) * 32).peer
        node.kept_for.add(who)
        assert isinstance(await node.hear(who, asked(size=defaults.RESULT_BYTES)), Refusal)
    for _ in range(12):  # no node has the blob
        node.replication.rates = Rates(Rate(1e9, 0.0))
        answer = await node.hear(AUTHOR, asked(size=defaults.INPUT_BYTES))
        assert isinstance(answer, Refusal) and answer.code == "not-stored"
    node.shelf.blobs[BLOB] = b"x"
    for _ in range(8):
        assert isinstance(await node.hear(AUTHOR, asked(size=defaults.INPUT_BYTES)), Reply)


async def test_an_author_hears_that_the_disk_is_full(
    tmp_path: Path, autojump_clock: object
) -> None:
    """With a real shelf: nodes whose part for jobs is full refuse, and another node is asked."""
    made = await shelf_node(tmp_path, 8 * MIB)
    full, roomy = Node(shelf=made.shelf), Node()
    author = Node([ME, OTHER])
    author.courier.nodes.update({ME: full, OTHER: roomy})
    await made.made(10 * MIB, here=True)
    root = await made.made(2 * MIB)
    roomy.shelf.blobs[root] = b"x"
    for node in (full, roomy):
        node.learn()
    answer = await full.hear(AUTHOR, asked(blob=root, size=2 * MIB))
    assert isinstance(answer, Refusal) and answer.code == "full" and "disk" in answer.message
    assert await author.replication.replicate(JOB, root, 2 * MIB)
    assert roomy.shelf.kept == {root: AUTHOR} and root not in made.roots
    del author.courier.nodes[OTHER]
    assert not await author.replication.replicate(JOB, root, 2 * MIB), "and no other one has room"


async def test_nodes_that_serve_the_model_are_asked_first(autojump_clock: object) -> None:
    peers = [PeerId("1" * 51 + letter) for letter in "abcdefghijklmnop"]
    author = Node(peers)
    author.learn()
    author.serving = {peers[3], peers[9]}
    assert not await author.replication.replicate(JOB, BLOB, 100)
    assert set(author.courier.asked[:2]) == author.serving
    assert len(author.courier.asked) == defaults.REPLICATE_ASKED


async def test_another_node_is_asked_if_one_refuses(autojump_clock: object) -> None:
    silent = [PeerId("1" * 51 + letter) for letter in "abcdef"]
    author, keeper = Node([*silent[:2], OTHER]), Node()
    keeper.learn()
    author.courier.nodes[OTHER] = keeper
    assert await author.replication.replicate(JOB)
    keeper.kept_for.clear()
    assert not await author.replication.replicate(JOB)
    assert not await Node().replication.replicate(JOB), "there is no other node"
    assert ME not in author.courier.asked


async def test_a_silent_keeper_does_not_hold_up_a_submission(autojump_clock: object) -> None:
    author, keeper = Node([OTHER]), Node()
    author.courier.nodes[OTHER] = keeper
    began = trio.current_time()
    assert not await author.replication.replicate(JOB)
    assert trio.current_time() - began <= defaults.REPLICATE_TIME + 1


async def test_several_nodes_keep_an_input_and_wait_for_none_that_is_slow(
    autojump_clock: object,
) -> None:
    peers = [PeerId("1" * 51 + letter) for letter in "abcdef"]
    author = Node(peers)
    for peer in peers:
        keeper = author.courier.nodes[peer] = Node()
        keeper.learn()
        keeper.shelf.blobs[BLOB] = b"x" * 100
    assert (await author.replication.attempt(JOB, BLOB, 100, 3)).is_stored
    assert sum(BLOB in node.shelf.kept for node in author.courier.nodes.values()) == 3
    for node in author.courier.nodes.values():
        node.shelf.kept.clear()
        node.shelf.blobs.clear()  # so it asks for half a minute
    author.courier.nodes[peers[2]].shelf.blobs[BLOB] = b"x" * 100
    began = trio.current_time()
    assert (await author.replication.attempt(JOB, BLOB, 100, 6)).is_stored
    assert trio.current_time() - began <= 1 + defaults.REPLICATE_MORE
