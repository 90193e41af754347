"""Drafter: guesses the next tokens from the session's own text and the same user's earlier ones.

Where the latest tokens occurred before, it follows what came after them then. If several places
are followed and differ, most of them decide. How often such guesses were right, by the length of
the match and by whether all places agreed, is counted, and tells the probability of the next ones.
No I/O.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from .defaults import HISTORIES, HISTORY_TOKENS, LONGEST_MATCH, MEMORY, PRIOR, SURE
from .suffixes import History, SuffixIndex


class Guess(NamedTuple):
    """A guessed token, and the kind of evidence for it, which `Accuracy` counts."""

    token: int
    kind: int


SAID = 64
"""Kind of evidence of a guess that a smaller model made. It is even, so half of such guesses are
assumed to be right before any was verified."""


class Accuracy:
    """How often guesses of each kind of evidence were right."""

    def __init__(self) -> None:
        self._right: dict[int, float] = {}
        self._all: dict[int, float] = {}

    def note(self, kind: int, *, right: bool) -> None:
        """Count a guess that was verified."""
        decay = 1 - (1 - MEMORY) / 4
        self._right[kind] = self._right.get(kind, 0.0) * decay + right
        self._all[kind] = self._all.get(kind, 0.0) * decay + 1

    def probability(self, kind: int) -> float:
        """Return the probability that a guess of this kind is right."""
        right, every = self._right.get(kind, 0.0), self._all.get(kind, 0.0)
        return min(SURE, (right + PRIOR * _assumed(kind)) / (every + PRIOR))


def kind_of(match: int, *, agreed: bool) -> int:
    """Return the kind of evidence as a number: from the length of the match in tokens, by powers of
    two, and from whether all places agreed."""
    return 2 * min(match, LONGEST_MATCH).bit_length() + agreed


def _assumed(kind: int) -> float:
    """Return the probability that is assumed for a kind of which nothing was verified: longer
    matches are more reliable."""
    return 1 - 0.7 ** (kind // 2) if kind % 2 else (1 - 0.7 ** (kind // 2)) / 2


class Drafter:
    """Drafter of one session. `history` is the text of the same user's earlier sessions."""

    def __init__(self, history: History | None = None) -> None:
        self.own = SuffixIndex()
        self._history = history

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens of the prompt or the answer."""
        self.own.extend(tokens)

    def draft(self, behind: Sequence[int], most: int) -> list[Guess]:
        """Return up to `most` guesses for what follows the text and the guesses `behind` it."""
        texts = [self.own, *(self._history.parts if self._history is not None else ())]
        context = [*self.own.tokens[-LONGEST_MATCH:], *behind]
        best, followed = 0, list[tuple[SuffixIndex, int]]()
        for text in texts:
            match, places = text.places(context)
            if match > best:
                best, followed = match, []
            if match == best:
                followed += [(text, place) for place in places]
        return self._follow(followed, best, behind, most)

    def _follow(
        self,
        followed: list[tuple[SuffixIndex, int]],
        match: int,
        behind: Sequence[int],
        most: int,
    ) -> list[Guess]:
        """Return what came after the places, as long as there is something."""
        found: list[Guess] = []
        while len(found) < most:
            if len(followed) == 1:
                self._copy(*followed[0], match, found, most)
                if len(found) >= most:
                    break
            nexts = [
                self._token(text, place + len(found), behind, found) for text, place in followed
            ]
            token = _most(nexts)
            if token is None:
                break
            agreed = nexts.count(token) == len(nexts)
            found.append(Guess(token, kind_of(match + len(found), agreed=agreed)))
            if not agreed:
                pairs = zip(followed, nexts, strict=True)
                followed = [each for each, that in pairs if that == token]
        return found

    def _copy(
        self, text: SuffixIndex, place: int, match: int, found: list[Guess], most: int
    ) -> None:
        """Append what comes after the only place, as far as the text goes."""
        first, length = place + len(found), match + len(found)
        for token in text.tokens[first : place + most]:
            found.append(Guess(token, kind_of(length, agreed=True)))
            length += 1

    def _token(
        self, text: SuffixIndex, place: int, behind: Sequence[int], found: Sequence[Guess]
    ) -> int | None:
        """Return the token at a place. Behind the session's own text, its guesses are read, so that
        what repeats itself is followed without an end."""
        if place < len(text):
            return text.tokens[place]
        place -= len(text)
        if text is not self.own or place >= len(behind) + len(found):
            return None
        return behind[place] if place < len(behind) else found[place - len(behind)].token


def _most(tokens: Sequence[int | None]) -> int | None:
    """Return the most frequent token, the first of several; None if there is none."""
    known = [token for token in tokens if token is not None]
    if not known or known.count(known[0]) == len(known):
        return known[0] if known else None
    return max(Counter(known).items(), key=itemgetter(1))[0]


class Histories:
    """Texts of earlier sessions by user and model, and how accurate guesses were.

    One user's text is never used for another's guesses, because the time that an answer takes
    would tell what the other one has asked.
    """

    def __init__(self, most: int = HISTORIES, tokens: int = HISTORY_TOKENS) -> None:
        self._most, self._tokens = most, tokens
        self.found: OrderedDict[tuple[str, str], tuple[History, Accuracy]] = OrderedDict()

    def of(self, user: str, model: str) -> tuple[History, Accuracy]:
        """Return the history of a user's sessions with a model, and the accuracy of guesses.

        The least recently used history is forgotten if there are too many.
        """
        key = user, model
        found = self.found.get(key)
        if found is None:
            found = self.found[key] = History(self._tokens), Accuracy()
        self.found.move_to_end(key)
        if len(self.found) > self._most:
            self.found.popitem(last=False)
        return found
