"""Finds the line of each key in a TOML document, which `tomllib` does not report.

The document must be one that `tomllib` has accepted; its grammar is therefore not checked again. A
path is a tuple of keys and, inside arrays, of indices: `("host", 0, "nat")`.
"""

import re
from typing import Final

Path = tuple[str | int, ...]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPACE: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK: Final = re.compile(r"[ \t]*")
_STRINGS: Final = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{1,2}(?!"))?', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{1,2}(?!'))?", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
_PLAIN: Final = re.compile(r"[^,\]}\s#]+(?: [0-9][^,\]}\s#]*)?")  # or `1979-05-27 07:32:00`


class _DocumentScanner:
    """Scanner of a document.

    `at` is the position in the text, and `lines` has the lines found so far.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {(): 1}
        self._arrays: dict[Path, int] = {}  # how many tables each array of tables has so far
        self._counted = 0, 1  # the position at which `line` was last called, and its line

    def line(self) -> int:
        """Return the number of the current line, from 1."""
        before, line = self._counted
        line += self.text.count("\n", before, self.at)
        self._counted = self.at, line
        return line

    def skip(self, pattern: re.Pattern[str] = _SPACE) -> None:
        """Advance past the text that a pattern matches at the current position."""
        found = pattern.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def document(self) -> None:
        """Scan the whole document."""
        table: Path = ()
        self.skip()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
            self.skip()

    def header(self) -> Path:
        """Scan a table's header, `[a.b]` or `[[a.b]]`, and return the path of the table."""
        line = self.line()
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path: Path = ()
        keys = self.keys()
        self.at += 2 if array else 1
        for key in keys[:-1]:
            path = self.inside((*path, key))
            self.lines.setdefault(path, line)
        path = (*path, keys[-1])
        self.lines.setdefault(path, line)
        if array:
            number = self._arrays.get(path, 0)
            self._arrays[path] = number + 1
            path = (*path, number)
        self.lines[path] = line
        return path

    def inside(self, path: Path) -> Path:
        """Return the path of the table that a key of a header means.

        If the key names an array of tables, this is the last table of the array so far.
        """
        number = self._arrays.get(path, 0)
        return (*path, number - 1) if number else path

    def keys(self) -> list[str]:
        """Scan a dotted key, and return its parts."""
        found = []
        while True:
            self.skip(_BLANK)
            found.append(self.key())
            self.skip(_BLANK)
            if self.text[self.at] != ".":
                return found
            self.at += 1

    def key(self) -> str:
        """Scan one part of a dotted key, bare or quoted, and return it without quotes."""
        quote = self.text[self.at]
        if quote not in "\"'":
            start = self.at
            self.skip(_BARE)
            return self.text[start : self.at]
        start = self.at
        self.string()
        inner = self.text[start + 1 : self.at - 1]
        return _unescaped(inner) if quote == '"' else inner

    def pair(self, table: Path) -> None:
        """Scan a key and its value, in the table at path `table`."""
        line = self.line()
        path = table
        for key in self.keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self.skip(_BLANK)
        self.value(path)

    def value(self, path: Path) -> None:
        """Scan a value of any type, and record the line of its path."""
        self.lines.setdefault(path, self.line())
        start = self.text[self.at]
        if start == "[":
            self.array(path)
        elif start == "{":
            self.inline(path)
        elif start in "\"'":
            self.string()
        else:
            self.skip(_PLAIN)

    def array(self, path: Path) -> None:
        """Scan an array. Each element gets a path with its index."""
        self.at += 1
        number = 0
        self.skip()
        while self.text[self.at] != "]":
            self.value((*path, number))
            number += 1
            self.separator()
        self.at += 1

    def inline(self, path: Path) -> None:
        """Scan an inline table, `{key = value}`."""
        self.at += 1
        self.skip()
        while self.text[self.at] != "}":
            self.pair(path)
            self.separator()
        self.at += 1

    def separator(self) -> None:
        """Skip white space, comments and a comma, if there is one."""
        self.skip()
        if self.text[self.at] == ",":
            self.at += 1
            self.skip()

    def string(self) -> None:
        """Advance past a string of any of the four kinds."""
        for pattern in _STRINGS:
            if found := pattern.match(self.text, self.at):
                self.at = found.end()
                return


def _unescaped(inner: str) -> str:
    """Replace the escape sequences in a quoted key by their characters."""
    short = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}

    def character(found: re.Match[str]) -> str:
        word = found[1]
        return chr(int(word[1:], 16)) if word[0] in "uU" else short.get(word, word)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", character, inner)


def positions(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every key and array element of a valid TOML document, by path."""
    reader = _DocumentScanner(text)
    reader.document()
    return reader.lines
