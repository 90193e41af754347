"""Comparison of an answer's tokens with those that a chain chooses."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from shoal.tasks.engine.interface import Sampling
from shoal.tasks.engine.sampling import gumbel
from shoal.tasks.inference.conversation.answer import Answer
from shoal.tasks.inference.conversation.items import Arrived
from shoal.tasks.inference.conversation.recomputing import KnownAnswer, Ties
from shoal.tasks.inference.generation import Summary
from shoal.tasks.inference.messages import SampledToken

PROMPT = [5, 6, 7]
GREEDY = Sampling()
pytestmark = pytest.mark.trio


class Heard:
    """An answer that takes every token, and never ends by itself."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    async def add(self, items: Sequence[Arrived]) -> bool:
        self.ids += [item.token.token for item in items]
        return False

    def summary(self) -> Summary:
        return Summary("length", 3, 1, 0.0, 0.0, 0.0, "a", (1,))


def known(tokens: Sequence[int], how: Sampling = GREEDY, most: int = 1) -> KnownAnswer:
    ids = list(PROMPT)
    return KnownAnswer(cast(Answer, Heard(ids)), ids, tokens, how, Ties(0.1, most))


def chosen(token: int, position: int, *top: tuple[int, float]) -> Arrived:
    logprob = dict(top)[token]
    return Arrived(SampledToken(b"s" * 16, 1, position, token, logprob, False, 0.0, top), 0.0)


async def test_the_first_other_token_ends_it() -> None:
    answer = known([1, 2, 3])
    assert not await answer.add([chosen(1, 3, (1, -0.1), (9, -3.0))])
    assert await answer.add([chosen(9, 4, (9, -0.1), (2, -3.0)), chosen(3, 5, (3, -0.1))])
    assert answer.over and answer.made == 1


async def test_a_tie_counts_as_right_and_the_chain_is_opened_again() -> None:
    answer = known([1, 2, 3])
    assert await answer.add([chosen(9, 3, (9, -0.70), (1, -0.75))])
    assert not answer.over and answer.made == 1
    assert await answer.add([chosen(9, 4, (9, -0.70), (2, -0.75))]), "there may be one tie"
    assert answer.over and answer.made == 1


async def test_a_token_that_is_not_named_is_at_most_as_likely_as_the_last_one() -> None:
    for last, right in ((-0.75, True), (-0.9, False)):
        answer = known([1, 2, 3])
        assert await answer.add([chosen(9, 3, (9, -0.70), (8, last))])
        assert (answer.made == 1) is right


async def test_drawn_tokens_are_compared_with_their_noise() -> None:
    """The noise of two tokens decides whether they are a tie."""
    how = Sampling(temperature=1.0, seed=3)
    for position in range(3, 200):
        noise = gumbel(how.seed, position, np.array([9, 1], np.int64))
        gap = float(noise[0] - noise[1])
        if abs(gap) > 0.5:
            break
    for extra, right in ((0.05, True), (0.3, False)):
        answer = known([1, 2], how)
        # The score of the other token is lower by `extra`.
        logprob = -1.0 + gap - extra
        top = sorted(((9, -1.0), (1, logprob)), key=lambda each: -each[1])
        assert await answer.add([chosen(9, position, *top)])
        assert (answer.made == 1) is right


async def test_a_filter_is_not_evaded() -> None:
    """A token that top_k removes may have a higher score, and is wrong nevertheless."""
    how = Sampling(temperature=50.0, top_k=1, seed=1)
    answer = known([1, 2], how)
    noise = gumbel(how.seed, 3, np.arange(64, dtype=np.int64))
    best = int(noise.argmax())
    answer = known([best, 2], how)
    assert await answer.add([chosen(70, 3, (70, -0.1), (best, -5.0))])
    assert answer.over and answer.made == 0 and math.isfinite(noise[best])


async def test_a_cut_answer_is_not_whole() -> None:
    """An answer that nothing has ended must have as many tokens as it may have."""
    answer = known([1])
    assert await answer.add([chosen(1, 3, (1, -0.1))])
    assert answer.result(1).whole and not answer.result(2).whole
