"""Smaller models of a gateway's node, which guess what a chain says."""

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.state.membership.record import ShardRecord
from shoal.tasks.drafting.modelguesses import ModelGuesses
from shoal.tasks.engine.interface import Parts, Rules, Sampling
from shoal.tasks.errors import NoRoute
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.conversation.guessing import Guessing
from shoal.tasks.inference.conversation.items import Arrived
from shoal.tasks.inference.conversation.saidtokens import SaidTokens
from shoal.tasks.inference.conversation.talk import Talk
from shoal.tasks.inference.conversation.windows import Windows
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.generation import GenerateRequest, GenerationRun, Model, TextCodec
from shoal.tasks.inference.messages import SampledToken
from shoal.tasks.routing.paths import Hop
from tests.tasks.fake_node import FakeDirectory, record_of
from tests.tasks.fake_swarm import FakeText, peer_of

LARGE, SMALL, TINY, OTHER = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
Say = Callable[[Talk], Awaitable[None]]
TOKEN_S = {LARGE: 0.2, SMALL: 0.02, TINY: 0.01}  # seconds of a token
OWN, FIRST, LAST = peer_of(1), peer_of(2), peer_of(3)


def model(root: str, *, vocabulary: int = 100) -> Model:
    return Model(root, "model", 2, 8, 600, vocabulary, cast(TextCodec, FakeText()))


def shard(root: str, start: int = 0, stop: int = 2) -> ShardRecord:
    return ShardRecord(root, start == 0, start, stop, stop == 2, "bfloat16", 1000)


class Node:
    """A gateway whose node serves some models. Each says the tokens in `text`."""

    def __init__(
        self, *served: ShardRecord, text: Sequence[int] = (), say: Say | None = None
    ) -> None:
        self.text = text
        self.asked: list[Talk] = []
        self.sent = 0
        self.drafts = True
        directory = FakeDirectory()
        directory.put(record_of(OWN, shards=served))
        directory.put(record_of(FIRST))
        directory.put(record_of(LAST))
        choice = SimpleNamespace(replaced=self._chain, token_s=lambda _, m: TOKEN_S[m.root])
        windows = SimpleNamespace(may_draft=lambda *_: self.drafts, send=self._send)
        self.guessing = Guessing(
            cast(Courier, SimpleNamespace(peer=OWN)),
            directory,
            cast(Choice, choice),
            cast(Windows, windows),
            self._alike,
            say or self._say,
        )

    def _chain(self, small: Model, _session: bytes, members: Any, _rows: int, _new: int) -> Any:
        whole = [
            Hop(peer, Parts(True, 0, 2, True), each.dtype)
            for peer, record in members.items()
            for each in record.shards
            if each.root == small.root and each.embedding and each.head
        ]
        return tuple(whole[:1])

    async def _alike(self, _model: Model, root: str) -> Model | None:
        await trio.lowlevel.checkpoint()
        return None if root == OTHER else model(root)

    async def _say(self, talk: Talk) -> None:
        self.asked.append(talk)
        await trio.lowlevel.checkpoint()
        at = len(talk.ids)
        for position in range(at, at + talk.new):
            final = position + 1 == at + talk.new
            if await talk.answer.add([arrived(self.text[position], position, final=final)]):
                return

    def _send(self, run: GenerationRun) -> None:
        self.sent += 1


def arrived(token: int, position: int, *, final: bool = False) -> Arrived:
    said = SampledToken(b"s" * 16, 1, position, token, -1.0, final, 0.0)
    return Arrived(said, 0.0)


def conversation(*peers: str, new: int = 40, **request: Any) -> tuple[Talk, GenerationRun]:
    ids = [1, 2, 3]
    hops = [
        Hop(cast(Any, peer), Parts(at == 0, at, at + 1, at == 1), "bfloat16")
        for at, peer in enumerate(peers)
    ]
    run = GenerationRun(b"s" * 16, hops, ids, new, 0.0)
    run.said = ModelGuesses(ids)
    asked = GenerateRequest(LARGE, "x", **request)
    return Talk(model(LARGE), asked, ids, new, cast(Any, None)), run


async def kept(node: Node, talk: Talk, run: GenerationRun) -> None:
    """Have guesses made for as long as nothing else happens."""
    with trio.move_on_after(1):
        await node.guessing.keep(talk, run)


@pytest.mark.trio
async def test_a_smaller_model_continues_the_text_on_this_node(autojump_clock: object) -> None:
    """It chooses with the same noise and rules, and no other node reads the text for it."""
    node = Node(shard(SMALL), text=range(100))
    sampling, rules = Sampling(0.7, seed=5), Rules(repetition=1.5)
    talk, run = conversation(FIRST, LAST, sampling=sampling, rules=rules, user="anna")
    assert node.guessing.may_guess(talk, run)
    await kept(node, talk, run)
    (asked,) = node.asked
    assert asked.request.sampling == sampling and asked.request.rules == rules
    assert asked.request.user == "anna" and asked.model.root == SMALL
    assert asked.lost == {FIRST, LAST}
    assert run.said is not None and node.sent > 0
    assert run.said.behind([], 3) == [3, 4, 5]
    run.said.take(3)
    run.said.take(77)
    await kept(node, talk, run)
    assert asked.ids == [1, 2, 3] and node.asked[-1].ids == [1, 2, 3, 3, 77]


@pytest.mark.trio
async def test_the_largest_model_that_is_fast_enough_guesses(autojump_clock: object) -> None:
    """It must be eight times as fast as the chain."""
    for chain_s, expected in ((0.2, SMALL), (0.1, TINY), (0.05, None)):
        node = Node(shard(OTHER), shard(TINY), shard(SMALL), shard(LARGE, 0, 1), text=range(100))
        talk, run = conversation(FIRST, LAST)
        TOKEN_S[LARGE] = chain_s
        await kept(node, talk, run)
        assert [each.model.root for each in node.asked[:1]] == ([expected] if expected else [])
    TOKEN_S[LARGE] = 0.2


@pytest.mark.trio
async def test_a_part_of_a_model_or_another_tokenizer_guesses_nothing(
    autojump_clock: object,
) -> None:
    for served in (shard(SMALL, 0, 1), shard(OTHER)):
        node = Node(served, text=range(100))
        talk, run = conversation(FIRST, LAST)
        await kept(node, talk, run)
        assert not node.asked


def test_nothing_guesses_on_the_device_that_verifies() -> None:
    node = Node(shard(SMALL))
    assert not node.guessing.may_guess(*conversation(OWN))
    assert node.guessing.may_guess(*conversation(OWN, LAST))
    assert not Node(shard(LARGE)).guessing.may_guess(*conversation(FIRST, LAST))
    node.drafts = False
    assert not node.guessing.may_guess(*conversation(FIRST, LAST))


@pytest.mark.trio
async def test_a_session_goes_on_without_a_model_that_fails(autojump_clock: object) -> None:
    async def fail(_talk: Talk) -> None:
        await trio.lowlevel.checkpoint()
        raise NoRoute("no member serves the model")

    node = Node(shard(SMALL), say=fail)
    talk, run = conversation(FIRST, LAST)
    with trio.fail_after(1):
        await node.guessing.keep(talk, run)


@pytest.mark.trio
async def test_a_model_that_is_no_use_is_not_asked_again(autojump_clock: object) -> None:
    node = Node(shard(SMALL), text=[9] * 1000)
    talk, run = conversation(FIRST, LAST, new=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.guessing.keep, talk, run)
        for token in range(50):
            await trio.sleep(0.1)
            assert run.said is not None
            run.said.take(token % 8)
    assert len(node.asked) < 20


@pytest.mark.trio
async def test_tokens_that_the_larger_model_lacks_are_no_guesses(autojump_clock: object) -> None:
    """A window with one would be refused, and the session would end."""
    said = ModelGuesses([1])
    said.begin(lambda: None)
    answer = SaidTokens(said, (), 100, lambda: None)
    assert not await answer.add([arrived(99, 1)])
    assert await answer.add([arrived(100, 2)])
    assert said.behind([], 9) == [99]
