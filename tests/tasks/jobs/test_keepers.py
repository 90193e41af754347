"""Tests of the replication of jobs: a node confirms only what it really stores."""

from collections.abc import Mapping
from typing import cast

import pytest
import trio

from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job, Jobs, job_fact, job_id
from shoal.tasks.inference.courier import Courier
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.keepers import KEEP, Keepers
from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.host.seam import Host
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Handler, Refusal, Reply
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER, FakeHost, FakeShelf

pytestmark = pytest.mark.trio
NONCE = b"n" * 16
JOB, BLOB = job_id(AUTHOR, NONCE), "cd" * 32


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
        assert method == KEEP
        if peer not in self.nodes:
            raise LinkClosed("unreachable", "no link")
        answer = await self.nodes[peer].hear(AUTHOR, dict(header))
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer


class Node:
    def __init__(self, helpers: list[PeerId] | None = None) -> None:
        self.jobs, self.shelf, self.courier = Jobs(), FakeShelf(), FakeCourier()
        self.kept_for = {AUTHOR}
        self.keepers = Keepers(
            cast(Host, FakeHost()),
            cast(Courier, self.courier),
            self.jobs,
            self.shelf,
            helpers=lambda: helpers or [],
            keeps=lambda peer: peer in self.kept_for,
        )

    def learn(self) -> None:
        """Receive the job's entry."""
        job = Job(JOB, AUTHOR, "generate", b"")
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
    assert isinstance(answer, Refusal) and answer.code == "not-kept"
    codes = []
    for _ in range(4):
        answer = await node.hear(AUTHOR, asked(size=defaults.INPUT_BYTES))
        codes.append(answer.code if isinstance(answer, Refusal) else "kept")
    assert codes == ["kept", "kept", "busy", "busy"], "64 MiB each, of 128"


async def test_another_node_is_asked_if_one_refuses(autojump_clock: object) -> None:
    silent = [PeerId("1" * 51 + letter) for letter in "abcdef"]
    author, keeper = Node([*silent[:2], OTHER]), Node()
    keeper.learn()
    author.courier.nodes[OTHER] = keeper
    assert await author.keepers.replicate(JOB)
    keeper.kept_for.clear()
    assert not await author.keepers.replicate(JOB)
    assert not await Node().keepers.replicate(JOB), "there is no other node"
    assert ME not in author.courier.asked


async def test_a_silent_keeper_does_not_hold_up_a_submission(autojump_clock: object) -> None:
    author, keeper = Node([OTHER]), Node()
    author.courier.nodes[OTHER] = keeper
    began = trio.current_time()
    assert not await author.keepers.replicate(JOB)
    assert trio.current_time() - began <= defaults.KEEP_TIME + 1


async def test_several_nodes_keep_an_input_and_wait_for_none_that_is_slow(
    autojump_clock: object,
) -> None:
    peers = [PeerId("1" * 51 + letter) for letter in "abcdef"]
    author = Node(peers)
    for peer in peers:
        keeper = author.courier.nodes[peer] = Node()
        keeper.learn()
        keeper.shelf.blobs[BLOB] = b"x" * 100
    assert await author.keepers.replicate(JOB, BLOB, 100, 3)
    assert sum(BLOB in node.shelf.kept for node in author.courier.nodes.values()) == 3
    for node in author.courier.nodes.values():
        node.shelf.kept.clear()
        node.shelf.blobs.clear()  # so it asks for half a minute
    author.courier.nodes[peers[2]].shelf.blobs[BLOB] = b"x" * 100
    began = trio.current_time()
    assert await author.keepers.replicate(JOB, BLOB, 100, 6)
    assert trio.current_time() - began <= 1 + defaults.KEEP_MORE
