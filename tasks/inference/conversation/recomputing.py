"""Recomputes an answer that another node claims to have generated.

The tokens of the answer are sent as drafts, so that a chain computes many positions in one pass. At
each position the head chooses a token as it always does. The answer is right if that is the token
of the answer. Chains round differently, so a token that is nearly as good counts as well. A
new session then begins behind it, because a session cannot continue with a token that its head did
not choose.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from ...drafting.drafter import Drafter, Guess
from ...engine.interface import Sampling
from ...engine.sampling import gumbel
from ...routing.paths import Hop
from ..generation import Awaited
from ..messages import SampledToken
from .answer import Answer
from .items import Arrived, Pooled

TOP = 20
"""Most likely tokens that the head names at each position."""
_SURE = 128  # kind of evidence of a guess that is known


@dataclass(frozen=True, slots=True)
class Ties:
    """Tokens that count as right, although the chain chose others: those that are at most `nats`
    less likely. There may be `most` of them in an answer."""

    nats: float
    most: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Result of comparing an answer with the choices of a chain.

    `right` is the number of tokens before the first one that the chain would not choose, and
    `ties` of these are only nearly as good. `whole` says whether all are right and the answer ends
    there. `text` and `reason` are those of an answer with these tokens.
    """

    right: int
    ties: int
    whole: bool
    text: str
    reason: str
    logprobs: tuple[float, ...]


class KnownAnswer:
    """An answer whose tokens are known. `ids` is the prompt, and grows with each right token. The
    same list is in `answer`."""

    def __init__(
        self,
        answer: Answer,
        ids: list[int],
        tokens: Sequence[int],
        sampling: Sampling,
        ties: Ties,
    ) -> None:
        self._answer = answer
        self._ids = ids
        self._prompt = len(ids)
        self._tokens = tuple(tokens)
        self._sampling = sampling
        self._ties = ties
        self._tied = 0
        self._logprobs: list[float] = []
        self.over = not tokens
        """Whether no more is to be computed."""

    @property
    def made(self) -> int:
        """Number of tokens that are right so far."""
        return len(self._ids) - self._prompt

    def drafter(self) -> Drafter:
        """Return a drafter that knows the answer."""
        return _KnownTexts((*self._ids[: self._prompt], *self._tokens))

    async def begin(self, chain: Sequence[Hop]) -> None:
        """Start or continue on a chain."""
        await self._answer.begin(chain)

    async def wait(self, event: Awaited) -> None:
        """Wait until a node serves the layers that a lost stage had. No client hears of it."""
        await self._answer.wait(event)

    async def add(self, items: Sequence[Arrived | Pooled]) -> bool:
        """Compare the tokens that a chain has chosen. Return whether the chain is to be closed."""
        right, tied, wrong = list[Arrived](), False, False
        for item in items:
            if not isinstance(item, Arrived):
                continue
            at = self.made + len(right)
            if at == len(self._tokens):
                break
            token, said = item.token, self._tokens[at]
            if token.token != said:
                replaced = self._replaced(token, said, last=at + 1 == len(self._tokens))
                tied, wrong = True, replaced is None
                if replaced is None:
                    break
                token = replaced
            right.append(Arrived(token, item.at))
            if tied:
                break
        # All at once, because each call detokenizes.
        ended = bool(right) and await self._answer.add(right)
        self._logprobs += [each.token.logprob for each in right]
        self.over = wrong or ended or self.made == len(self._tokens)
        return self.over or tied

    def _replaced(self, chosen: SampledToken, said: int, *, last: bool) -> SampledToken | None:
        """Return the answer's token in place of another one that the chain chose, or None if it is
        wrong."""
        logprob = self._near(said, chosen)
        if logprob is None or self._tied >= self._ties.most:
            return None
        self._tied += 1
        return structs.replace(chosen, token=said, logprob=logprob, final=last)

    def _near(self, said: int, chosen: SampledToken) -> float | None:
        """Return the log-probability of the answer's token if it is nearly as good as the one that
        the chain chose, else None.

        If the token is not among the most likely ones, it is assumed to be as likely as the last of
        these, which is the most that it can be.
        """
        likely, how = dict(chosen.top), self._sampling
        if not likely:
            return None
        logprob = likely.get(said, chosen.top[-1][1])
        worse = chosen.logprob - logprob
        if how.temperature > 0:
            ids = np.array([chosen.token, said], np.int64)
            noise = gumbel(how.seed, chosen.position, ids)
            worse += how.temperature * float(noise[0] - noise[1])
        if 0 < how.top_k <= len(chosen.top):
            worse = max(worse, chosen.top[how.top_k - 1][1] - logprob)
        return logprob if worse <= self._ties.nats else None

    def result(self, room: int) -> Recomputed:
        """Return the result. An answer that did not end may have `room` tokens, and must have as
        many."""
        right, summary = self.made, self._answer.summary() if self.made else None
        whole = right == len(self._tokens) > 0
        reason = "" if summary is None else summary.reason
        return Recomputed(
            right=right,
            ties=self._tied,
            whole=whole and (reason == "stop" or right == room),
            text="" if summary is None else summary.text,
            reason=reason,
            logprobs=tuple(self._logprobs),
        )


class _KnownTexts(Drafter):
    """Drafter that knows the whole text."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__()
        self._text = text

    def draft(self, behind: Sequence[int], most: int) -> list[Guess]:
        """Return what comes next."""
        start = len(self.own) + len(behind)
        return [Guess(token, _SURE) for token in self._text[start : start + most]]
