"""Loads a scenario from its file, with the files that it names in the same folder."""

from pathlib import Path
from typing import Final

from ..errors import BadScenario
from ..scenario.format.parse import parse
from ..scenario.format.source import MOST_BYTES
from ..scenario.format.tables import Scenario
from .folder import RESULT

MOST_BYTES_BESIDE: Final = 32 << 20  # maximum size of a file that a scenario names


def read_scenario(path: Path, hosts: int | None = None) -> Scenario:
    """Load and check a scenario. If `hosts` is given, it replaces `hosts` of `[world]`.

    Raises BadScenario, with the file and the line in its message, if anything is wrong.
    """
    text = _read_text(path, MOST_BYTES)

    def beside(name: str) -> str:
        """Return the text of a file in the scenario's folder, by name."""
        file = path.parent / name
        if file.resolve().parent != path.parent.resolve():
            raise BadScenario(
                f"`{file}` is outside the scenario's folder", hint="copy the file into it"
            )
        try:
            return _read_text(file, MOST_BYTES_BESIDE)
        except BadScenario as error:  # raised without a line, so that the parser adds its own
            hint = error.hint if file.exists() else "put it next to the scenario"
            raise BadScenario(error.message, hint=hint) from None

    try:
        return parse(text, hosts=hosts, beside=beside)
    except BadScenario as error:
        raise error.of(path) from None


def _read_text(path: Path, most: int) -> str:
    """Return the text of a UTF-8 file of at most `most` bytes.

    Raises BadScenario if the file is missing, unreadable, too large, not UTF-8, or not a regular
    file. Reading a pipe, for example, could block.
    """
    if path.is_dir():
        hint = "give a file in it"
        if (path / RESULT).is_file():
            hint = f"`shoal sim replay {path}` repeats a run"
        raise BadScenario(f"`{path}` is a folder", hint=hint)
    if not path.exists():
        raise BadScenario(
            f"there is no file `{path}`",
            hint="examples/scenarios/ has some; `shoal sim run --help` shows an example",
        )
    if not path.is_file():
        raise BadScenario(f"`{path}` is not a regular file", hint="save it as one")
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except PermissionError:
        raise BadScenario(f"`{path}` cannot be read", hint="check its owner and its mode") from None
    if len(data) > most:
        raise BadScenario(
            f"`{path}` is larger than {most >> 20} MiB",
            hint="`count` of a [[host]] makes many hosts of one table",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadScenario(
            f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8"
        ) from None
