"""An answer of a smaller model, whose tokens are guesses of what a larger one says."""

from collections.abc import Callable, Collection, Sequence

import trio

from ...drafting.modelguesses import ModelGuesses
from ...routing.paths import Hop
from ..generation import Awaited
from .items import Arrived, Pooled


class SaidTokens:
    """Adds the tokens of one answer to the guesses of a session."""

    made = 0
    """Tokens before those of the present chain. An answer that loses its chain is not continued."""

    def __init__(
        self,
        said: ModelGuesses,
        stop_ids: Collection[int],
        vocabulary: int,
        added: Callable[[], None],
    ) -> None:
        """`stop_ids` end a text. The session's model has `vocabulary` tokens, which may be fewer
        than the smaller one has. `added` is called when there are further guesses."""
        self._said = said
        self._stop_ids = stop_ids
        self._vocabulary = vocabulary
        self._added = added

    async def begin(self, chain: Sequence[Hop]) -> None:
        """Do nothing: no client reads the answer."""
        await trio.lowlevel.checkpoint()

    async def wait(self, event: Awaited) -> None:
        """Do nothing: no client waits for it."""
        await trio.lowlevel.checkpoint()

    async def add(self, arrived: Sequence[Arrived | Pooled]) -> bool:
        """Add tokens. Return whether the answer has ended, or does not go on as the session."""
        await trio.lowlevel.checkpoint()
        for item in arrived:
            if isinstance(item, Arrived):
                token = item.token
                if token.token >= self._vocabulary or not self._said.add(token.token):
                    return True
                if token.final:
                    self._said.end(stopped=token.token in self._stop_ids)
                    self._added()
                    return True
        self._added()
        return False
