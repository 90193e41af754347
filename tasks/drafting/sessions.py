"""Drafting of a gateway: the histories of its users, and the beginning of sessions."""

from collections.abc import Sequence

import trio

from ..costs.chain import WindowPrices
from .controller import Controller
from .defaults import SLICE_TOKENS
from .drafter import Drafter, Histories
from .modelguesses import ModelGuesses
from .speculation import DraftCounts, Speculation


class Drafting:
    """Drafting of one gateway."""

    def __init__(self, *, on: bool = True, fixed: tuple[int, int] | None = None) -> None:
        """`on` is False to draft nothing. `fixed`: positions of a window, and windows in flight,
        instead of those that are computed from measurements."""
        self.on = on
        self._fixed = fixed
        self._histories = Histories()

    def begin(
        self,
        user: str,
        model: str,
        stages: int,
        limit: int,
        counts: DraftCounts,
        prices: WindowPrices,
        said: ModelGuesses | None = None,
    ) -> Speculation:
        """Return the drafts of a session over a number of stages, which must read its prompt.

        `limit` is the number of positions that the session may have. `prices` are predicted.
        `said` are the guesses of a smaller model.
        """
        history, accuracy = self._histories.of(user, model)
        controller = Controller(stages, prices, fixed=self._fixed)
        speculation = Speculation(Drafter(history), accuracy, controller, stages, limit, said)
        speculation.counts = counts
        return speculation

    async def end(self, user: str, model: str, ids: Sequence[int]) -> None:
        """Remember the text of a session for the same user's later ones."""
        history, _ = self._histories.of(user, model)
        new = ids[history.common(ids) :]
        for first in range(0, len(new), SLICE_TOKENS):
            history.extend(new[first : first + SLICE_TOKENS])
            await trio.lowlevel.checkpoint()
