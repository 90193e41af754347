"""Rules of a session that change logits, with the tokens on which they depend. No I/O.

Spec: docs/spec/sampling.md. Only tokens that the gateway has told, or that the session has chosen,
count. So a draft, a replay and an audit see the same changes at a position.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError
from ..interface import Rules
from ..sampling import Change, Floats, Ids
from ..wire import Header

Small: TypeAlias = NDArray[np.int32]
Tokens: TypeAlias = Sequence[int] | Small
Kind = TypeVar("Kind", bound=np.generic)
_FIRST: Final = 64  # tokens for which there is room at first
_NONE: Final[Ids] = np.empty(0, np.int64)


class SessionRules:
    """The rules of a session, and how often each token is in its answer.

    A gateway may tell as many tokens as its session has positions, as often as it likes. So nothing
    here has a loop in Python over them, and a token takes a few bytes.
    """

    def __init__(self, rules: Rules, vocabulary: int) -> None:
        """Raises EngineError `bad-token` if the bias is for an id outside the vocabulary."""
        self._rules = rules
        self._vocabulary = vocabulary
        if rules.bias and rules.bias[-1][0] >= vocabulary:
            raise EngineError("bad-token", f"a bias is for an id outside of {vocabulary} tokens")
        self._start = -1 if rules.penalise else 0  # position of the answer's first token
        self._begin(_NONE, _NONE)

    def _begin(self, prompt: Ids, answer: Ids) -> None:
        """Start with the tokens of a prompt and an answer alone."""
        bias = self._rules.bias
        self._places: Small = np.full(self._vocabulary, -1, np.int32)  # by token id
        self._size = 0  # number of tokens that have a place
        self._ids: Small = np.empty(0, np.int32)  # by place, and so are the next two
        self._prompt: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._counts: Small = np.empty(0, np.int32)
        self._locate(_ids([token for token, _ in bias]))  # they get the first places
        self._bias: Floats = np.array([each for _, each in bias], np.float64)
        if self._rules.repetition != 1.0:
            places = self._locate(prompt)  # before the array is read, which it may replace
            self._prompt[places] = True
        if not self._rules.penalise:
            answer = _NONE
        self._answer: Small = answer.astype(np.int32)
        self._made = len(answer)  # tokens of the answer; behind them is room for more
        places = self._locate(answer)
        self._counts += _times(places, len(self._counts))

    def _locate(self, tokens: Ids | Small) -> Small:
        """Return the places of tokens in the arrays, which grow by those that are new."""
        new = tokens[self._places[tokens] < 0]
        if len(new) > 1:  # each once, in ascending order. Sorting would take 100 times as long
            is_new = np.zeros(self._vocabulary, np.bool_)
            is_new[new] = True
            new = np.flatnonzero(is_new)
        if len(new):
            size = self._size + len(new)
            if size > len(self._ids):
                room = max(size, 2 * len(self._ids), _FIRST)
                self._ids = _longer(self._ids, room)
                self._prompt = _longer(self._prompt, room)
                self._counts = _longer(self._counts, room)
            self._places[new] = np.arange(self._size, size)
            self._ids[self._size : size] = new
            self._size = size
        found: Small = self._places[tokens]
        return found

    @property
    def size(self) -> int:
        """Number of tokens whose logits change."""
        return self._size

    def recall(self, position: int, prompt: Tokens, answer: Tokens) -> None:
        """Begin again with the tokens before a position. Raises EngineError `bad-token` if an id is
        outside the vocabulary, and `bad-span` if there are more tokens than positions."""
        if len(prompt) + len(answer) > position:
            raise EngineError("bad-span", f"more tokens are recalled than {position} positions")
        before, said = _ids(prompt), _ids(answer)
        for ids in (before, said):
            if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocabulary:
                raise EngineError("bad-token", f"a token is outside of {self._vocabulary} ids")
        self._start = position - len(said)
        self._begin(before, said)

    def check(self, position: int) -> None:
        """Raise EngineError `gap` unless the tokens before a position are known, on which the
        penalties depend."""
        if self._rules.penalise and not self._knows(position):
            raise EngineError("gap", f"the penalties lack the tokens before position {position}")

    def _knows(self, position: int) -> bool:
        return self._start >= 0 and 0 <= position - self._start <= self._made

    def took(self, position: int, token: int) -> None:
        """Note the token of the answer at a position, and forget the later ones.

        A token that does not follow what is known is ignored: work of an earlier epoch may still
        have chosen it.
        """
        if not self._rules.penalise or not self._knows(position):
            return
        if len(later := self._behind(position)):
            self._counts -= _times(self._places[later], len(self._counts))
        at = position - self._start
        if at == len(self._answer):
            self._answer = _longer(self._answer, max(2 * at, _FIRST))
        self._answer[at] = token
        self._made = at + 1
        place = self._locate(_ids([token]))
        self._counts[place] += 1

    def _behind(self, position: int) -> Small:
        """Return the tokens of the answer from a position on."""
        return self._answer[position - self._start : self._made]

    def change(self, position: int, drafts: Sequence[int] = ()) -> Change:
        """Return the change of the logits for a position, before which the answer ends with
        `drafts`. Raises EngineError `gap` if the tokens before these are not known."""
        self.check(position - len(drafts))
        rules, counts = self._rules, self._counts
        if rules.penalise:
            counts = self._counted(position - len(drafts), drafts)
        size = self._size
        counts = counts[:size]
        said = counts > 0
        bias = _longer(self._bias, size)
        repetition = np.where(said | self._prompt[:size], rules.repetition, 1.0)
        penalty = rules.frequency * counts + rules.presence * said
        # Copies, because the arrays change while a device still reads them.
        return Change(self._ids[:size].astype(np.int64), bias, repetition, penalty)

    def _counted(self, position: int, drafts: Sequence[int]) -> Small:
        """Return how often each token is in the answer before a position and in the drafts that
        follow."""
        later = self._behind(position)
        if not drafts and not len(later):
            return self._counts
        places = self._locate(_ids(drafts))
        size = len(self._counts)
        return self._counts + _times(places, size) - _times(self._places[later], size)


def _ids(tokens: Tokens) -> Ids:
    return np.asarray(tokens, np.int64)


def _times(places: Small, size: int) -> Small:
    """Return how often each place below `size` is among these."""
    return np.bincount(places, minlength=size).astype(np.int32)


def _longer(values: NDArray[Kind], size: int) -> NDArray[Kind]:
    """Return a copy of an array with zeros behind it, up to a size."""
    made = np.zeros(size, values.dtype)
    made[: len(values)] = values
    return made


def recalled(header: Header, payload: memoryview) -> tuple[int, Tokens, Tokens]:
    """Return the position, the tokens of the prompt and those of the answer from a frame.

    Raises EngineError `bad-span` if it is malformed.
    """
    match header:
        case (bytes(), int(position), int(prompt)) if not len(payload) % 4 and prompt >= 0:
            tokens = np.frombuffer(payload, np.int32)
            return position, tokens[:prompt], tokens[prompt:]
    raise EngineError("bad-span", "the recalled tokens are malformed")
