"""Rules of a session that change logits, with the tokens on which they depend. No I/O.

Spec: docs/spec/sampling.md. Only tokens that the gateway has told, or that the session has chosen,
count. So a draft, a replay and an audit see the same changes at a position.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError
from ..interface import Rules
from ..sampling import Change, Floats, Ids
from ..wire import Header

_FIRST = 64  # tokens for which there is room at first


class SessionRules:
    """The rules of a session, and how often each token is in its answer."""

    def __init__(self, rules: Rules, vocabulary: int) -> None:
        """Raises EngineError `bad-token` if the bias is for an id outside the vocabulary."""
        self._rules = rules
        self._vocabulary = vocabulary
        if rules.bias and rules.bias[-1][0] >= vocabulary:
            raise EngineError("bad-token", f"a bias is for an id outside of {vocabulary} tokens")
        self._answer: list[int] = []
        self._start = -1 if rules.penalise else 0  # position of the answer's first token
        self._begin(())

    def _begin(self, prompt: Sequence[int]) -> None:
        """Start with the tokens of a prompt alone."""
        self._place = dict[int, int]()  # by token id
        self._ids: Ids = np.empty(_FIRST, np.int64)
        self._bias: Floats = np.zeros(_FIRST)
        self._prompt: NDArray[np.bool_] = np.zeros(_FIRST, np.bool_)
        self._counts: Floats = np.zeros(_FIRST)
        for token, bias in self._rules.bias:
            place = self._at(token)  # before the array is read, which it may replace
            self._bias[place] = bias
        for token in prompt if self._rules.repetition != 1.0 else ():
            place = self._at(token)
            self._prompt[place] = True

    def _at(self, token: int) -> int:
        """Return the place of a token in the arrays, which grow if it is new."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            more = np.zeros(place, np.float64)
            self._ids = np.concatenate((self._ids, more.astype(np.int64)))
            self._bias = np.concatenate((self._bias, more))
            self._prompt = np.concatenate((self._prompt, more.astype(np.bool_)))
            self._counts = np.concatenate((self._counts, more))
        self._ids[place] = token
        return place

    @property
    def size(self) -> int:
        """Number of tokens whose logits change."""
        return len(self._place)

    def recall(self, position: int, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Begin again with the tokens before a position. Raises EngineError `bad-token` if an id is
        outside the vocabulary, and `bad-span` if there are more tokens than positions."""
        if len(prompt) + len(answer) > position:
            raise EngineError("bad-span", f"more tokens are recalled than {position} positions")
        if any(not 0 <= token < self._vocabulary for token in (*prompt, *answer)):
            raise EngineError("bad-token", f"a token is outside of {self._vocabulary} ids")
        self._begin(prompt)
        self._answer = []
        self._start = position - len(answer)
        for at, token in enumerate(answer, self._start):
            self.took(at, token)

    def check(self, position: int) -> None:
        """Raise EngineError `gap` unless the tokens before a position are known, on which the
        penalties depend."""
        if self._rules.penalise and not self._knows(position):
            raise EngineError("gap", f"the penalties lack the tokens before position {position}")

    def _knows(self, position: int) -> bool:
        return self._start >= 0 and 0 <= position - self._start <= len(self._answer)

    def took(self, position: int, token: int) -> None:
        """Note the token of the answer at a position, and forget the later ones.

        A token that does not follow what is known is ignored: work of an earlier epoch may still
        have chosen it.
        """
        if not self._rules.penalise or not self._knows(position):
            return
        self._forget(position)
        self._answer.append(token)
        place = self._at(token)
        self._counts[place] += 1

    def _forget(self, position: int) -> None:
        """Forget the tokens from a position on."""
        for token in self._answer[position - self._start :]:
            self._counts[self._place[token]] -= 1
        del self._answer[position - self._start :]

    def change(self, position: int, drafts: Sequence[int] = ()) -> Change:
        """Return the change of the logits for a position, before which the answer ends with
        `drafts`. Raises EngineError `gap` if the tokens before these are not known."""
        self.check(position - len(drafts))
        rules, counts = self._rules, self._counts
        if rules.penalise:
            counts = self._counted(position - len(drafts), drafts)
        size = len(self._place)
        counts = counts[:size]
        said = counts > 0
        repetition = np.where(said | self._prompt[:size], rules.repetition, 1.0)
        penalty = rules.frequency * counts + rules.presence * said
        # Copies, because the arrays change while a device still reads them.
        return Change(self._ids[:size].copy(), self._bias[:size].copy(), repetition, penalty)

    def _counted(self, position: int, drafts: Sequence[int]) -> Floats:
        """Return how often each token is in the answer before a position and in the drafts that
        follow."""
        later = self._answer[position - self._start :]
        if not drafts and not later:
            return self._counts
        places = np.array([self._at(token) for token in (*drafts, *later)], np.int64)
        counts = self._counts.copy()
        np.add.at(counts, places[: len(drafts)], 1)
        np.subtract.at(counts, places[len(drafts) :], 1)
        return counts


def recalled(header: Header, payload: memoryview) -> tuple[int, list[int], list[int]]:
    """Return the position, the tokens of the prompt and those of the answer from a frame.

    Raises EngineError `bad-span` if it is malformed.
    """
    match header:
        case (bytes(), int(position), int(prompt)) if not len(payload) % 4 and prompt >= 0:
            tokens = payload.cast("i").tolist()
            return position, tokens[:prompt], tokens[prompt:]
    raise EngineError("bad-span", "the recalled tokens are malformed")
