"""Windows of drafts for one session, at its gateway. Sends nothing itself.

The gateway drafts behind everything that it has sent, as if all of it were right. When a token
arrives that differs from its draft, what was sent behind it is void, and a new *branch* begins. Its
first window begins with that token, since the head's message may reach the first stage later.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import trio

from .controller import Ahead, Controller
from .defaults import AHEAD, FLIGHT, SLICE_TOKENS
from .drafter import SAID, Accuracy, Drafter, Guess
from .modelguesses import ModelGuesses

_LOOK = 16  # guesses that are made at a time


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens for the positions from `start` on, of which all but the first may be guesses.

    `branch` is the position of the last token that was another than drafted, 0 if there was none.
    """

    branch: int
    start: int
    tokens: tuple[int, ...]


@dataclass(slots=True)
class DraftCounts:
    """Figures of one session."""

    sent: int = 0  # guesses that were sent to be computed
    right: int = 0  # of these, those that the model said
    windows: int = 0
    most: int = 0  # windows in flight at once


class Speculation:
    """Guesses of one session. `limit` is the position after its last token."""

    def __init__(
        self,
        drafter: Drafter,
        accuracy: Accuracy,
        controller: Controller,
        stages: int,
        limit: int,
        said: ModelGuesses | None = None,
    ) -> None:
        """`said` are the guesses of a smaller model."""
        self.counts = DraftCounts()
        self._drafter = drafter
        self._said = said
        self._accuracy = accuracy
        self._controller = controller
        self._stages = stages
        self._limit = limit
        self._branch = 0
        self._guesses: deque[Guess] = deque()  # for the positions behind the known tokens
        self._sent = 0  # positions below were sent
        # (start, end) of the guesses in each window that was sent. The token before them in a
        # chain's first window is mostly computed before, since the head feeds it.
        self._flight: deque[tuple[int, int]] = deque()
        # When the last token arrived, how many rows were wasted then, and whether only the head
        # has told the first stage of this token.
        self._last_at = 0.0
        self._vain = 0
        self._fed = False
        self._more = False  # whether the head sends the next token together with the last one
        self._early: list[tuple[int, float, float]] | None = []  # tokens before all was read

    @property
    def round_s(self) -> float:
        """Measured seconds from a token to the next one without drafts. 0 if no draft was right:
        the times of the tokens show it then."""
        return self._controller.round_s if self.counts.right else 0.0

    async def read(self, ids: Sequence[int]) -> None:
        """Read the prompt, in parts between which other tasks run."""
        for first in range(0, len(ids), SLICE_TOKENS):
            self._drafter.extend(ids[first : first + SLICE_TOKENS])
            await trio.lowlevel.checkpoint()
        early, self._early = self._early or [], None
        for token, seconds, now in early:
            self.take(token, seconds, now)

    def take(self, token: int, seconds: float, now: float) -> None:
        """Note the next token of the text, which arrived at `now`. `seconds` is the time that the
        stages computed for it."""
        if self._early is not None:
            self._early.append((token, seconds, now))
            return
        position, self._controller.begun = len(self._drafter.own), True
        self._measure(position, seconds, now)
        if self._more and seconds:  # its window was not computed, or the token had come before
            self._void(position)
        guess = self._guesses.popleft() if self._guesses else None
        right, sent = guess is not None and guess.token == token, position < self._sent
        if guess is not None:
            self._accuracy.note(guess.kind, right=right)
        self.counts.right += right and sent
        self._fed = not (right and sent)
        self._vain = 0
        if not right:
            self._guesses.clear()
            if sent:
                self._vain = self._sent - position
                self._branch = position
                self._void(position)
        self._drafter.extend((token,))
        if self._said is not None:
            self._said.take(token)
        self._last_at = now
        while self._flight and self._flight[0][1] <= position:
            self._flight.popleft()
        start, end = self._flight[0] if self._flight and self._stages > 1 else (position, position)
        self._more = start < position < end

    def _void(self, position: int) -> None:
        """Forget the windows that were sent for the positions from `position` on."""
        self._sent = position
        self._flight.clear()

    def _measure(self, position: int, seconds: float, now: float) -> None:
        """Tell the controller what the token at a position took."""
        if not seconds:
            return  # it was computed together with its predecessor
        if self._stages == 1:
            rows = next((end - position for start, end in self._flight if start < position), 0)
            self._controller.note_round(seconds, max(0, rows))
        elif self._fed:
            self._controller.note_round(now - self._last_at, self._vain)

    def windows(self) -> Iterator[Window]:
        """Yield the windows to send now: none before the last of several tokens that come together,
        because a wrong guess among them would make the windows void."""
        if self._early is not None or self._more:
            return
        known = len(self._drafter.own)
        most = self._limit - 1 - known
        count, length = self._wanted(most) if most > 0 else (0, 0)
        end, sent = known + count, max(self._sent, known)
        while sent < end and len(self._flight) < FLIGHT:
            if self._sent > known and end - sent < length and count < most:
                break  # until there are enough for a whole window
            stop = min(sent + length, end)
            yield self._window(max(self._sent, known - 1), stop)
            sent = stop

    def _window(self, start: int, stop: int) -> Window:
        own = self._drafter.own.tokens
        tokens = [
            own[at] if at < len(own) else self._guesses[at - len(own)].token
            for at in range(start, stop)
        ]
        counts = self.counts
        counts.sent += stop - max(start, len(own))
        counts.windows += 1
        self._sent = stop
        self._flight.append((start if self._stages == 1 else max(start, len(own)), stop))
        counts.most = max(counts.most, len(self._flight))
        return Window(self._branch, start, tuple(tokens))

    def _wanted(self, most: int) -> Ahead:
        """Return how many guesses are worth being in flight, after making at most `most`."""
        while True:
            chances = (self._accuracy.probability(guess.kind) for guess in self._guesses)
            wanted = self._controller.ahead(chances)
            left = most - len(self._guesses)
            if wanted.guesses < len(self._guesses) or wanted.guesses >= AHEAD or left <= 0:
                return wanted
            behind = [guess.token for guess in self._guesses]
            more = self._draft(behind, min(_LOOK, left))
            if not more:
                return wanted
            self._guesses += more

    def _draft(self, behind: Sequence[int], most: int) -> list[Guess]:
        """Return up to `most` guesses for what follows the text and the guesses `behind` it: those
        that are more likely to be right, of the drafter or of the smaller model."""
        found, chance = self._drafter.draft(behind, most), self._accuracy.probability
        said = [] if self._said is None else self._said.behind(behind, most)
        if said and (not found or chance(SAID) >= chance(found[0].kind)):
            return [Guess(token, SAID) for token in said]
        return found
