"""Converts tokens to text as they arrive, withholding incomplete characters and stop strings.

No I/O. A tokenizer's decoder needs a whole sequence: it joins bytes to characters, and treats the
space before the first token in a special way. Each step therefore decodes a *window* of ids: those
of the text that was returned last (`prefix`) and the new ones after them (`fresh`). Whatever the
window's text has beyond the prefix's text is new. The text child decodes the window and the fresh
ids in one request.
"""

from collections.abc import Sequence

from ..defaults import HELD_TOKENS, STOP_STRING_CHARACTERS, STOP_STRINGS
from ..errors import TextError

REPLACEMENT = "\ufffd"  # decoders write this for an invalid or incomplete character


class TextWindow:
    """Window of the token ids whose text is not complete yet."""

    def __init__(self) -> None:
        self._prefix: list[int] = []
        self._prefix_text = ""
        self._fresh: list[int] = []
        self._held = ""

    def push(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Append tokens. Return (ids of the window to decode, index of the first fresh id)."""
        self._fresh += tokens
        return self._prefix + self._fresh, len(self._prefix)

    def advance(self, window: str, fresh: str) -> str:
        """Process the decoded window, and return the new text that is complete.

        `window` is the text of all ids, and `fresh` the text of the fresh ids alone. If `window`
        does not begin with the prefix's text, `fresh` counts as the new text. That happens with
        byte-fallback decoders, where one invalid byte spoils the whole run of bytes.
        """
        new = self._new(window, fresh)
        unfinished = not new or new.endswith(REPLACEMENT)
        if unfinished and len(self._fresh) < HELD_TOKENS:
            self._held = new
            return ""
        if new:
            self._prefix, self._prefix_text = self._fresh, fresh
        self._fresh, self._held = [], ""
        return new

    def completed(self, window: str, fresh: str) -> str:
        """Return the text that one more token would complete. Changes nothing.

        `window` and `fresh` are those of `advance`, with that token.
        """
        new = self._new(window, fresh)
        return "" if new.endswith(REPLACEMENT) else new

    def _new(self, window: str, fresh: str) -> str:
        """Return the text behind that of the prefix."""
        known = window.startswith(self._prefix_text)
        return window[len(self._prefix_text) :] if known else fresh

    def finish(self) -> str:
        """Return the withheld text, because no more tokens will complete it."""
        held, self._held = self._held, ""
        return held


class StopFilter:
    """Filter that ends text at the first stop string, and withholds a possible beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if len(stops) > STOP_STRINGS:
            raise TextError("bad-stop", f"{len(stops)} stop strings where {STOP_STRINGS} may be")
        for stop in stops:
            if not 0 < len(stop) <= STOP_STRING_CHARACTERS:
                raise TextError(
                    "bad-stop", f"a stop string has 1 to {STOP_STRING_CHARACTERS} characters"
                )
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Append text. Return the part that certainly precedes any stop string.

        After a stop string, returns "".
        """
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the withheld text at the end of the generation, because it did not become a stop
        string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
