"""Converts tokens to text as they arrive, holding back unfinished characters and stop strings.

Sans-I/O. A tokenizer's decoder works on a whole sequence: it joins bytes to characters and
treats the first token's space in its own way. So each step decodes a *window*, the ids of the
last text given out (`prefix`) and those after (`fresh`), and the difference to the prefix's own
text is new. Both texts come from one request to the text child.
"""

from collections.abc import Sequence

from ..defaults import HELD_TOKENS, STOP_STRING_CHARACTERS, STOP_STRINGS
from ..errors import TextError

REPLACEMENT = "\ufffd"  # what decoders write for bytes that are no character, or not one yet


class TextWindow:
    """Window of the token ids whose text is not finished yet."""

    def __init__(self) -> None:
        self._prefix: list[int] = []
        self._prefix_text = ""
        self._fresh: list[int] = []
        self._held = ""

    def push(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Add tokens. Return the window's ids to decode, and the index of the first new id."""
        self._fresh += tokens
        return self._prefix + self._fresh, len(self._prefix)

    def advance(self, window: str, fresh: str) -> str:
        """Take the decoded window and the decoded fresh ids alone; the text that is finished.

        Where a byte-fallback decoder reads the window otherwise than its prefix (an invalid
        byte spoils the whole run of bytes), the fresh ids' own text is what is new.
        """
        known = window.startswith(self._prefix_text)
        new = window[len(self._prefix_text) :] if known else fresh
        unfinished = not new or new.endswith(REPLACEMENT)
        if unfinished and len(self._fresh) < HELD_TOKENS:
            self._held = new
            return ""
        if new:
            self._prefix, self._prefix_text = self._fresh, fresh
        self._fresh, self._held = [], ""
        return new

    def finish(self) -> str:
        """Return the text that was held back, because no more tokens will complete it."""
        held, self._held = self._held, ""
        return held


class StopFilter:
    """Cuts text at the first stop string, and holds back a possible beginning of one."""

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
        """Return the text that certainly precedes any stop string, or "" once stopped."""
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
        """Return the held back text at the end, which was not a stop string after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
