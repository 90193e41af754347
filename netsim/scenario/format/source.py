"""A TOML document, and a strict reader of its tables into dataclasses.

A dataclass declares the keys of a table with `knob(...)` fields. `Source.read` refuses everything
else, with its line and the nearest known word.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, NoReturn, TypeVar, overload

from ...errors import BadScenario, nearest
from .positions import Path, positions

MOST_BYTES: Final = 1 << 20
"""Maximum size: a larger file would take minutes to read."""
MOST_DEEP: Final = 30  # maximum of dots in one key
_DEEP: Final = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){""" + f"{MOST_DEEP}}}",
    re.ASCII,
)
_ONCE: Final = "put its keys together, under one such line"

Table = TypeVar("Table")
T = TypeVar("T")
Default = TypeVar("Default")
Reader = Callable[[object], T]
"""Takes a value of TOML. Raises ValueError with what is wrong about it."""
Known = Callable[[], Collection[str]]


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
    """Declare a field that is read from a table. Without a default it is required.

    `key` is its name in the file if that is not a valid Python name; `known` returns the words that
    its value has to be one of.
    """
    about = {"read": read, "says": says, "key": key, "known": known}
    made: object = field(default=default, metadata=about)
    return made


def key_of(item: "Field[object]") -> str:
    """Return the name of a field in the file."""
    return str(item.metadata["key"] or item.name)


def knobs(table: type) -> dict[str, "Field[object]"]:
    """Return the fields of a table that are read from the file, by their names there."""
    return {key_of(item): item for item in fields(table) if "read" in item.metadata}


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed document, and the line of each of its keys."""

    data: dict[str, object]
    lines: dict[Path, int]

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Parse a text. Raises BadScenario if it is not valid TOML."""
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
        """Return the line of a key, or of the nearest table around it."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def refuse(self, path: Path, message: str, hint: str = "") -> NoReturn:
        """Raise BadScenario about the item at `path`."""
        raise BadScenario(message, line=self.line(path), hint=hint)

    def unknown(self, path: Path, what: str, word: str, known: Collection[str]) -> NoReturn:
        """Refuse a word, naming the nearest known one."""
        self.refuse(path, f"there is no {what} `{word}`", nearest(word, known))

    def choice(self, path: Path, what: str, word: str, known: Collection[str]) -> None:
        """Refuse a word that is not one of `known`."""
        if word not in known:
            self.unknown(path, what, word, known)

    def table(self, path: Path, value: object) -> dict[str, object]:
        """Return the value as a table, or refuse it."""
        if not isinstance(value, dict):
            self.refuse(path, f"`{path[-1]}` has to be a table", f"write it as `[{path[-1]}]`")
        return value

    def tables(self, name: str) -> list[tuple[Path, dict[str, object]]]:
        """Return the tables of an array of tables, with their paths; none if it is absent."""
        found = self.data.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            self.refuse(
                (name,), f"`{name}` has to be an array of tables", f"write it as `[[{name}]]`"
            )
        return [((name, number), item) for number, item in enumerate(found)]

    def keys(self, path: Path, table: dict[str, object], known: Collection[str], what: str) -> None:
        """Refuse the first unknown key."""
        for key in table:
            if key not in known:
                self.refuse((*path, key), f"{what} has no key `{key}`", nearest(key, known))

    def value(self, path: Path, value: object, read: Reader[T]) -> T:
        """Pass a value through its reader; refuse it if the reader does."""
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
        """Read a table into its dataclass. Keys in `beside` are left to the caller."""
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
        found = self.value(path, value, item.metadata["read"])
        known = item.metadata["known"]
        if known is not None:
            for word in (found,) if isinstance(found, str) else found:
                self.choice(path, str(path[-1]), word, known())
        return found


def _toml_error(message: str, text: str) -> BadScenario:
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    said = message[: found.start()] if found else message
    line = int(found[1]) if found and found[1] else text.count("\n") + 1
    if twice := re.fullmatch(r"Cannot declare \((.*)\) twice", said):
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return BadScenario(f"[{name}] is declared twice", line=line, hint=_ONCE)
    return BadScenario(f"not valid TOML: {said[:1].lower()}{said[1:]}", line=line)
