"""Formats output for the terminal: colours, columns, sizes, and text from peers.

Text from peers is never printed unescaped, because a control sequence in a name could rewrite the
screen.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TextIO

from ..transport import naming, shortid
from . import defaults

if TYPE_CHECKING:
    from ..node.control.messages.encoding import Json, View
    from ..node.control.messages.generation import TextEvent

_WRITTEN = "\n\t\u00a0\u00ad\u200c\u200d\u202f\u3000\ufe0e\ufe0f"
GAP: Final = "  "  # between two columns
COLOURS = {"red": 31, "green": 32, "cyan": 36, "dim": 2, "bold": 1}


def safe(value: object, width: int = defaults.NAME_WIDTH) -> str:
    """Escape a text from a peer for the terminal (`naming.escaped`), and cut it to `width`
    characters."""
    return _cut(naming.escaped(str(value)[: width + 1]), width)


def name(value: object, width: int = defaults.NAME_WIDTH) -> str:
    """Escape and cut a name from a peer as `safe` does. If it looks like another name, append a
    warning."""
    text = str(value)[: width + 1]
    doubt = naming.doubt(text)
    return _cut(naming.spelled(text), width) + (f" ({doubt})" if doubt else "")


def _cut(shown: str, width: int) -> str:
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def safe_text(text: str) -> str:
    """Escape a text of a model for the terminal, at full length.

    Line breaks, tabs and spaces are kept, and so are the joiners and selectors that some scripts
    and emoji need.
    """
    return naming.escaped(text, keep=_WRITTEN)


def sentence(text: str) -> str:
    """Escape a sentence from the daemon, and shorten the peer ids in it."""
    return safe(shortid.shortened(text), defaults.MESSAGE_WIDTH)


def as_json(value: "View | Json") -> str:
    """Encode a value as one line of JSON. Characters outside ASCII are escaped."""
    from ..node.control.messages.encoding import plain

    return json.dumps(plain(value))


def as_readable_json(value: "View | Json") -> str:
    """Encode a value as indented JSON. Letters of all scripts are kept, and the characters that
    `safe` escapes are escaped."""
    from ..node.control.messages.encoding import plain

    text = json.dumps(plain(value), indent=1, ensure_ascii=False)
    return naming.escaped(text, keep="\n", spell=lambda each: json.dumps(each)[1:-1])


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Return `text` with a colour, if `stream` is a terminal and NO_COLOR is not set. Otherwise
    return it unchanged."""
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def report_error(message: str, hint: str) -> None:
    """Print one line `error: …` and one line `hint: …` on standard error."""
    _line("error", "red", message)
    _line("hint", "cyan", hint)


class Streamed:
    """Prints the text of a model to standard output as it arrives.

    At the end of the block, an unfinished line is ended, so that later output, such as an error,
    begins on a new line.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._last = ""

    def __enter__(self) -> "Streamed":
        return self

    def take(self, event: "TextEvent") -> None:
        """Print the text of an event. If the answer waits for a node, say so on standard error."""
        if event.event == "text":
            self.write(event.text)
        elif event.event == "waits" and not self._silent:
            layers = " and ".join(event.layers)
            what = f"the nodes with layers {layers} are lost: the answer waits until others have"
            # The text goes on where it stopped, so the line break is not part of the output.
            start = "" if self._last in ("", "\n") else "\n"
            line = f"{what} loaded them, {event.seconds:.0f} s at most"
            print(start + safe_text(line), file=sys.stderr)

    def write(self, text: str, colour: str = "") -> None:
        """Print a text, in the given colour if there is one."""
        if self._silent or not text:
            return
        shown = safe_text(text)
        sys.stdout.write(coloured(shown, colour, sys.stdout) if colour else shown)
        sys.stdout.flush()
        self._last = shown[-1:] or self._last

    def __exit__(self, *_error: object) -> None:
        if self._last not in ("", "\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _line(word: str, colour: str, text: str) -> None:
    shown = sentence(" ".join(text.split()))
    print(f"{coloured(word, colour, sys.stderr)}: {shown}", file=sys.stderr)


def fields(rows: Sequence[tuple[str, str]]) -> str:
    """Format pairs of a name and a value in two columns. Long values are wrapped at spaces, and a
    repeated name is left blank.

    All cells are escaped here as well, in case a command has not done it.
    """
    rows = [(naming.escaped(name), naming.escaped(value)) for name, value in rows]
    width = max((len(name) for name, _ in rows), default=0)
    most = max(columns() - width - len(GAP), defaults.LEAST_WIDTH)
    lines, before = [], ""
    for name, value in rows:
        for at, piece in enumerate(wrapped(value, most)):
            shown = "" if at or name == before else name
            lines.append(f"{shown:<{width}}{GAP}{piece}".rstrip())
        before = name
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table with a line of headings.

    If the table is wider than the terminal, the widest columns are wrapped at spaces. If that is
    not enough, each row is printed as a list of headings and cells. All cells are escaped.
    """
    rows = [list(map(naming.escaped, row)) for row in rows]
    cells = [list(heads), *rows]
    widths = _column_widths(cells, columns() - len(GAP) * (len(heads) - 1))
    if widths is None:
        return "\n\n".join(fields([*zip(heads, row, strict=True)]) for row in rows)
    return "\n".join(
        GAP.join(piece.ljust(width) for piece, width in zip(line, widths, strict=True)).rstrip()
        for row in cells
        for line in zip_longest(*map(wrapped, row, widths), fillvalue="")
    )


def _column_widths(cells: Sequence[Sequence[str]], most: int) -> list[int] | None:
    """Return widths of the columns that sum to at most `most` and do not break a word. Returns None
    if that is impossible."""
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    least = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    while sum(widths) > most:
        at = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        if widths[at] == least[at]:
            return None
        widths[at] -= 1
    return widths


def wrapped(text: str, width: int = 0) -> list[str]:
    """Break a text into lines of at most `width` characters; 0 means the width of the terminal.

    Lines break only at spaces, so that ids and addresses can be copied.
    """
    return textwrap.wrap(
        text, width or columns(), break_long_words=False, break_on_hyphens=False
    ) or [""]  # fmt: skip


def columns() -> int:
    """Return the width to format for, in characters: that of the terminal or, without one, 80."""
    return max(shutil.get_terminal_size((defaults.WIDTH, 24)).columns, defaults.LEAST_WIDTH)


def short(ident: object, among: Collection[str] = ()) -> str:
    """Escape an id, and cut it to the shortest length at which it differs from the ids in `among`
    (`shortid.short`)."""
    return safe(shortid.short(str(ident), among))


def size(count: float) -> str:
    """Format a number of bytes: `0 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def tokens(number: int) -> str:
    """Format a number of tokens: `1 token`, `1,223 tokens`."""
    return f"{number:,} {'token' if number == 1 else 'tokens'}"


def count(number: int, thing: str) -> str:
    """Format a number of things, with the plural if needed: `1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Format a duration in seconds: `12 s`, `3 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(value: float | None, form: str = ".1f") -> str:
    """Format a number in the given format. An absent one (None) is `-`."""
    return "-" if value is None else format(float(value), form)
