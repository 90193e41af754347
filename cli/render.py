"""How things look on a terminal: colours, columns, sizes, and text that peers supplied.

Nothing that came from elsewhere reaches the terminal unescaped: a control sequence in a name
could otherwise rewrite the screen.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from ..transport import naming
from . import defaults

_WRITTEN = "\n\t\u00a0\u00ad\u200c\u200d\u202f\u3000\ufe0e\ufe0f"
COLOURS = {"red": 31, "green": 32, "cyan": 36, "dim": 2, "bold": 1}


def safe(value: object, width: int = defaults.NAME_WIDTH) -> str:
    """Escape a peer's text for the terminal (`naming.escaped`) and cut it to `width`."""
    return _cut(naming.escaped(str(value)[: width + 1]), width)


def name(value: object, width: int = defaults.NAME_WIDTH) -> str:
    """Escape a peer's name as `safe` does, and append a warning if it looks like another."""
    text = str(value)[: width + 1]
    doubt = naming.doubt(text)
    return _cut(naming.spelled(text), width) + (f" ({doubt})" if doubt else "")


def _cut(shown: str, width: int) -> str:
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def safe_text(text: str) -> str:
    """Escape a model's text for the terminal, without cutting it. New lines, tabs and spaces stay,
    and so do the joiners and selectors that scripts and emoji need."""
    return naming.escaped(text, keep=_WRITTEN)


def as_json(value: object) -> str:
    """Encode as one line of ASCII JSON, in which everything else is escaped."""
    return json.dumps(value)


def as_readable_json(value: object) -> str:
    """Encode as indented JSON that keeps letters of all scripts and escapes what `safe` does."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    if text.replace("\n", "").isprintable() and text.isascii():
        return text
    return "".join(as_json(c)[1:-1] if c != "\n" and naming.is_hidden(c) else c for c in text)


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """`text` in a colour where `stream` is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


def report_error(message: str, hint: str) -> None:
    """One line `error: …` and one line `hint: …` on standard error."""
    _line("error", "red", message)
    _line("hint", "cyan", hint)


def _line(word: str, colour: str, text: str) -> None:
    shown = safe(" ".join(text.split()), defaults.MESSAGE_WIDTH)
    print(f"{coloured(word, colour, sys.stderr)}: {shown}", file=sys.stderr)


def fields(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values in two columns; a repeated name is left blank. Cells are escaped here as
    well, as in `table`, in case a command forgot one."""
    rows = [(naming.escaped(name), naming.escaped(value)) for name, value in rows]
    width = max((len(name) for name, _ in rows), default=0)
    lines, before = [], ""
    for name, value in rows:
        lines.append(f"{'' if name == before else name:<{width}}  {value}".rstrip())
        before = name
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their heads, each as wide as its widest cell. On a terminal so narrow that it
    would break each line twice, the cells of a row stand below each other."""
    rows = [list(map(naming.escaped, row)) for row in rows]
    cells = [list(heads), *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if columns and sum(widths) + 2 * (len(widths) - 1) > 2 * columns:
        return "\n\n".join(fields([*zip(heads, row, strict=True)]) for row in rows)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def size(count: float) -> str:
    """Bytes for a person: `0 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Seconds for a person: `12 s`, `3 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(value: Any, form: str = ".1f") -> str:
    """A figure that may be absent."""
    return "-" if value is None else format(float(value), form)
