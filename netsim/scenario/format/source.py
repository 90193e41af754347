"""A TOML document, and a strict parser that converts its tables to dataclasses.

A dataclass declares the keys of a table with `knob(...)` fields. `SourceDocument.read` refuses
every other key. The error has the line and the nearest known word.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, NoReturn, TypeVar, overload

from ...errors import BadScenario, nearest
from .positions import Path, positions

MOST_BYTES: Final = 1 << 20
"""Maximum size of a document: a larger one would take minutes to parse."""
MOST_DEEP: Final = 30  # maximum number of dots in one key
# Matches the start of a key with `MOST_DEEP` dots. Possessive quantifiers prevent backtracking.
_DEEP: Final = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){""" + f"{MOST_DEEP}}}",
    re.ASCII,
)
_ONCE: Final = "put its keys together, under one such line"

Table = TypeVar("Table")
T = TypeVar("T")
Default = TypeVar("Default")
Reader = Callable[[object], T]
"""Function that converts a TOML value. Raises ValueError, with a description of the mistake, if the
value is invalid.
"""
Known = Callable[[], Collection[str]]  # returns the words that a value can be


@overload
def knob(read: Reader[T], *, says: str, key: str = "", known: Known | None = None) -> T: ...


@overload
def knob(
    read: Reader[T], default: Default, *, says: str, key: str = "", known: Known | None = None
) -> T | Default: ...


def knob(
    read: Reader[T],
    default: object = MISSING,
    *,
    says: str,
    key: str = "",
    known: Known | None = None,
) -> object:
    """Declare a field of a dataclass that is parsed from a table. Without a default it is required.

    `read` converts the value, and `says` describes the key in the documentation. `key` is the name
    in the file if that is not a valid Python name. `known` returns the allowed words; each word of
    the value has to be one of them.
    """
    about = {"read": read, "says": says, "key": key, "known": known}
    made: object = field(default=default, metadata=about)
    return made


def key_of(item: "Field[object]") -> str:
    """Return the name that a field has in the file."""
    return str(item.metadata["key"] or item.name)


def knobs(table: type) -> dict[str, "Field[object]"]:
    """Return the fields of a dataclass that correspond to keys in the file, by key."""
    return {key_of(item): item for item in fields(table) if "read" in item.metadata}


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A parsed document. `lines` has the line of each key, from 1, by its path.

    To refuse something means to raise BadScenario with its line.
    """

    data: dict[str, object]
    lines: dict[Path, int]

    @classmethod
    def parse(cls, text: str) -> "SourceDocument":
        """Parse the text of a document. Raises BadScenario if it is too large or not valid TOML."""
        if len(text) > MOST_BYTES:
            raise BadScenario(
                f"a scenario has at most {MOST_BYTES >> 20} MiB",
                hint="`count` of a [[host]] makes many hosts of one table",
            )
        if deep := _DEEP.search(text):
            line = text.count("\n", 0, deep.start()) + 1
            raise BadScenario(f"a key has at most {MOST_DEEP} dots", line=line)
        try:
            data = tomllib.loads(text)
            return cls(data, positions(text.replace("\r\n", "\n")))
        except tomllib.TOMLDecodeError as error:
            raise _toml_error(str(error), text) from None
        except RecursionError:
            raise BadScenario("the file is nested too deeply") from None

    def line(self, path: Path) -> int:
        """Return the line of the key at `path`. If the key is not in the document, return the line
        of the nearest table around it.
        """
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def refuse(self, path: Path, message: str, hint: str = "") -> NoReturn:
        """Raise BadScenario about the item at `path`."""
        raise BadScenario(message, line=self.line(path), hint=hint)

    def unknown(self, path: Path, what: str, word: str, known: Collection[str]) -> NoReturn:
        """Refuse a word that is not known, and suggest the nearest known one.

        `what` names its kind.
        """
        self.refuse(path, f"there is no {what} `{word}`", nearest(word, known))

    def choice(self, path: Path, what: str, word: str, known: Collection[str]) -> None:
        """Refuse `word` if it is not one of `known`. `what` names the kind of word."""
        if word not in known:
            self.unknown(path, what, word, known)

    def table(self, path: Path, value: object) -> dict[str, object]:
        """Return `value` if it is a table; otherwise refuse it."""
        if not isinstance(value, dict):
            self.refuse(path, f"`{path[-1]}` has to be a table", f"write it as `[{path[-1]}]`")
        return value

    def tables(self, name: str) -> list[tuple[Path, dict[str, object]]]:
        """Return (path, table) for each table of the array `name`. The array may be absent."""
        found = self.data.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            self.refuse(
                (name,), f"`{name}` has to be an array of tables", f"write it as `[[{name}]]`"
            )
        return [((name, number), item) for number, item in enumerate(found)]

    def keys(self, path: Path, table: dict[str, object], known: Collection[str], what: str) -> None:
        """Refuse the first key of `table` that is not in `known`. `what` names the table."""
        for key in table:
            if key not in known:
                self.refuse((*path, key), f"{what} has no key `{key}`", nearest(key, known))

    def value(self, path: Path, value: object, read: Reader[T]) -> T:
        """Convert a value with a reader. If the reader raises ValueError, refuse the value."""
        try:
            return read(value)
        except ValueError as error:
            self.refuse(path, f"{path[-1]}: {error}")

    def read(
        self,
        table: type[Table],
        path: Path,
        data: dict[str, object],
        what: str,
        *,
        beside: Iterable[str] = (),
    ) -> Table:
        """Parse a table into its dataclass. `what` names the table in errors.

        The caller parses the keys in `beside` itself.
        """
        wanted = knobs(table)
        self.keys(path, data, {*wanted, *beside}, what)
        values: dict[str, Any] = {}
        for key, item in wanted.items():
            if key in data:
                values[item.name] = self._knob(item, (*path, key), data[key])
            elif item.default is MISSING:
                self.refuse(path, f"{what} needs `{key}`", str(item.metadata["says"]))
        return table(**values)

    def _knob(self, item: "Field[object]", path: Path, value: object) -> Any:
        """Convert the value of one key with its reader. Refuse the value if the key allows only
        certain words and the value has another word.
        """
        found = self.value(path, value, item.metadata["read"])
        known = item.metadata["known"]
        if known is not None:
            for word in (found,) if isinstance(found, str) else found:
                self.choice(path, str(path[-1]), word, known())
        return found


def _toml_error(message: str, text: str) -> BadScenario:
    """Convert an error message of `tomllib` to a BadScenario with its line."""
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    said = message[: found.start()] if found else message
    line = int(found[1]) if found and found[1] else text.count("\n") + 1
    if twice := re.fullmatch(r"Cannot declare \((.*)\) twice", said):
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return BadScenario(f"[{name}] is declared twice", line=line, hint=_ONCE)
    return BadScenario(f"not valid TOML: {said[:1].lower()}{said[1:]}", line=line)
