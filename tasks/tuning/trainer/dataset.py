"""Training data as JSONL: lines, and what each of them asks to learn. No I/O.

A line is `{"text": …}`, `{"prompt": …, "completion": …}` or `{"messages": […]}`. Broken lines are
reported with their number, and the others are used.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ...text.process import ChatTurn
from . import defaults

_FORMS: Final = '`{"text": …}`, `{"prompt": …, "completion": …}` or `{"messages": […]}`'


@dataclass(frozen=True, slots=True)
class Text:
    """A text of which everything is learned."""

    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A prompt, and the completion that is learned."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, of which the assistant's messages are learned."""

    messages: tuple[ChatTurn, ...]


Example = Text | Completion | Chat


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not used, by its number from 1 on, and the reason."""

    line: int
    why: str


@dataclass(slots=True)
class DataReport:
    """What became of a file of training data. All numbers are counts."""

    lines: int = 0  # except blank ones
    rows: int = 0
    tokens: int = 0
    counted: int = 0  # tokens that are learned
    split: int = 0  # texts that became several rows
    cut: int = 0  # completions and conversations whose end was cut off
    empty: int = 0  # lines with nothing to learn
    whole_chats: int = 0  # conversations of which everything is learned
    bad: int = 0
    named: list[BadLine] = field(default_factory=list)  # the first broken lines

    def refuse(self, line: int, why: str) -> None:
        """Count a broken line."""
        self.bad += 1
        if len(self.named) < defaults.BAD_LINES_NAMED:
            self.named.append(BadLine(line, why))


class Unusable(ValueError):
    """A line cannot be used. The text is the reason."""


class LineReader:
    """Cuts a file into lines. Feed it pieces, and an empty piece at the end."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False  # inside a line that is too long
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield (number from 1 on, line) for each complete line that is not blank. The line is None
        if it is longer than LINE_BYTES."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if not piece and (self._rest or self._skipping):
            lines, self._rest = [self._rest], b""
        for line in lines:
            self._number += 1
            long, self._skipping = self._skipping or len(line) > defaults.LINE_BYTES, False
            if long:
                yield self._number, None
            elif line.strip():
                yield self._number, line
        if len(self._rest) > defaults.LINE_BYTES:
            self._rest, self._skipping = b"", True


def parse_line(line: bytes | None) -> Example:
    """Return what a line asks to learn. Raises Unusable if it is broken."""
    if line is None:
        raise Unusable(f"longer than {defaults.LINE_BYTES >> 20} MiB; make several lines of it")
    try:
        value = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise Unusable(f"not UTF-8 at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {_words(error)}") from None
    if not isinstance(value, dict):
        raise Unusable(f"not an object; expected {_FORMS}")
    return _example(value)


def _words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.colno}"
    return str(error)[:80] if isinstance(error, ValueError) else "nested too deeply"


def _example(value: dict[str, object]) -> Example:
    if "messages" in value:
        return Chat(tuple(_messages(value["messages"])))
    if "prompt" in value or "completion" in value:
        return Completion(_text(value, "prompt"), _text(value, "completion"))
    if "text" in value:
        return Text(_text(value, "text"))
    fields = ", ".join(ascii(name)[:24] for name in list(value)[:4]) or "no field"
    raise Unusable(f"has {fields}; expected {_FORMS}")


def _text(value: dict[str, object], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise Unusable(f"`{name}` is {'missing' if name not in value else 'not a text'}")
    return _encodable(text, name)


def _encodable(text: str, name: str) -> str:
    """Return a text that has no half of a surrogate pair, which JSON can express."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unusable(f"`{name}` has a character that is not valid Unicode") from None
    return text


def _messages(value: object) -> Iterator[ChatTurn]:
    if not isinstance(value, list) or not 1 <= len(value) <= defaults.MESSAGES:
        raise Unusable(f"`messages` is not a list of 1 to {defaults.MESSAGES} messages")
    for number, each in enumerate(value, 1):
        role = each.get("role") if isinstance(each, dict) else None
        content = each.get("content") if isinstance(each, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise Unusable(f"message {number} is not an object with texts `role` and `content`")
        yield ChatTurn(_encodable(role, "role"), _encodable(content, "content"))


def pieces(text: str) -> Iterator[str]:
    """Cut a long text behind white space, if possible, so that each piece is encoded quickly."""
    at, most = 0, defaults.PIECE_CHARACTERS
    while len(text) - at > most:
        end = at + most
        space = max(text.rfind(" ", at + most // 2, end), text.rfind("\n", at + most // 2, end))
        cut = end if space < 0 else space
        yield text[at:cut]
        at = cut
    yield text[at:]
