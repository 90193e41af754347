"""Rest of an answer whose beginning a client has from another gateway."""

from ...errors import SessionError
from ...text.process import TextDelta
from ..generation import Emit, GatewayEvent


class Rest:
    """Passes on the events of an answer without the text that the client has.

    Raises SessionError `other-text` if the answer does not begin with that text.
    """

    def __init__(self, received: str, emit: Emit) -> None:
        self._left = received
        self._emit = emit

    async def __call__(self, event: GatewayEvent) -> None:
        if isinstance(event, TextDelta) and self._left:
            known, text = self._left[: len(event.text)], event.text
            if not text.startswith(known):
                raise _other()
            self._left = self._left[len(known) :]
            if len(known) == len(text):
                return
            event = TextDelta(text[len(known) :], event.stopped)
        await self._emit(event)

    def check(self) -> None:
        """Raise SessionError `other-text` if the answer has ended before the client's text."""
        if self._left:
            raise _other()


def _other() -> SessionError:
    return SessionError(
        "other-text",
        "the answer does not begin with the text that was received",
        hint="send the same request, with the seed of the first answer and the text as it came",
    )
