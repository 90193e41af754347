"""The folder of a run: its scenario, figures, trace and report, and which run may replace which.

A run with the same inputs, or with `--force`, replaces a folder. It is written to a hidden folder
next to it and moved into place when it ends, so that an interrupted run loses nothing.
"""

import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import RunFailed
from ..scenario.format.tables import Scenario
from ..scenario.result import Result

SCENARIO, RESULT, TRACE, REPORT = "scenario.toml", "run.json", "trace.msgpack", "report.html"
METRICS, SERIES, SAMPLES, HOSTS = "metrics.csv", "series.csv", "samples.csv", "hosts.csv"
PRODUCTS: Final = (RESULT, TRACE, REPORT, METRICS, SERIES, SAMPLES, HOSTS)
"""Files that a run writes. Other files in a folder belong to the user and are kept."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs that determine the packets of a run.

    `file` is the scenario's file, for messages, and `hosts` the value of `--hosts`.
    """

    scenario: Scenario
    file: Path
    seed: int
    hosts: int | None = None
    backend: str = "sim"


@dataclass(frozen=True, slots=True)
class Origin:
    """How a stored run was asked for: the value of `--hosts`, and the backend."""

    hosts_given: int | None
    backend: str | None


class RunFolder:
    """A run folder. Call `claim`, `make`, `write` and `settle` in this order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path
        """Where the run is written: next to an earlier run until `settle`, else `path` itself."""
        self.kept = True  # False: an earlier run got further, and stays in its place
        self._same: Result | None = None  # the earlier run, if it had the same inputs

    @property
    def trace(self) -> Path:
        return self.place / TRACE

    def claim(self, inputs: Inputs, *, force: bool) -> None:
        """Raise RunFailed if this run would replace another run or other files."""
        if not self.path.exists():
            return
        text = _text(self.path)
        names = {item.name for item in self.path.iterdir()} if self.path.is_dir() else {""}
        if text != inputs.scenario.text and (text is None or not names & {RESULT, TRACE}):
            if names:
                raise RunFailed(
                    f"`{self.path}` exists and is not a run folder",
                    hint="choose another with `--out DIR`",
                )
            return
        if RESULT not in names and text == inputs.scenario.text:
            return  # that run was killed
        other = self._other(inputs)
        if other and not force:
            raise RunFailed(
                f"`{self.path}` holds another run: {other}",
                hint=f"`--out {free(self.path)}` keeps both, `--force` replaces it",
            )
        if not force:
            self._same = self.read()[0]
        real = self.path.resolve()
        self.place = real.with_name(f".{real.name}.{os.getpid()}")

    def _other(self, inputs: Inputs) -> str:
        """Say how the run in this folder differs; empty if it had the same inputs."""
        if _text(self.path) != inputs.scenario.text:
            return "its scenario differs"
        for name, text in inputs.scenario.files.items():
            file = self.path / name
            if not file.is_file() or file.read_bytes() != text.encode():
                return f"its `{name}` differs"
        try:
            earlier, origin = self.read()
        except RunFailed:
            return f"its {RESULT} is damaged, or of another version"
        if earlier.seed != inputs.seed:
            return f"its seed is {earlier.seed}"
        if origin.hosts_given != inputs.hosts:
            given = origin.hosts_given
            return f"it ran {f'with `--hosts {given}`' if given else 'without `--hosts`'}"
        if "netns" in (origin.backend, inputs.backend):
            return "runs in a real kernel are not repeatable"
        return ""

    def make(self, scenario: Scenario) -> None:
        """Create the folder with the scenario in it."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            for name in PRODUCTS:
                (self.place / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        for name, text in scenario.files.items():
            write_text(self.place / name, text)
        write_text(self.place / SCENARIO, scenario.text)

    def settle(self, result: Result) -> str:
        """Move the run to its final folder, `path`. Return a note if an earlier run was there.

        An earlier run with the same inputs stays if it got further or had other packets.
        """
        if self.place == self.path:
            return ""
        same = self._same
        if same is not None and result.virtual < same.virtual:
            self.discard()
            self.kept = False
            return f"`{self.path}` keeps the earlier run, which got further"
        try:
            if same is not None and same.virtual == result.virtual and same.digest != result.digest:
                other = free(self.path)
                os.rename(self.place, other)
                earlier, self.path, self.place = self.path, other, other
                return (
                    f"kept both runs: the inputs are those of `{earlier}`, but the packets differ, "
                    "as the code or a version has changed"
                )
            repeated = same is not None and same.digest == result.digest
            self._replace(keep=repeated)
        except OSError as error:
            raise unwritable(self.path, error) from None
        if repeated:
            return f"replaced the run in `{self.path}`: it had the same inputs and packets"
        return f"replaced another run in `{self.path}`"

    def _replace(self, *, keep: bool) -> None:
        """Move the files into place; `keep`: keep files that the new run did not write."""
        new = {item.name for item in self.place.iterdir()}
        for name in () if keep else set(PRODUCTS) - new:
            (self.path / name).unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == RESULT):  # the result last
            os.replace(self.place / name, self.path / name)
        self.place.rmdir()
        self.place = self.path

    def discard(self) -> None:
        """Remove a run that has not been moved into place."""
        if self.place != self.path:
            with suppress(OSError):
                shutil.rmtree(self.place)
            self.place = self.path

    def write(self, result: Result, origin: Origin) -> None:
        """Write run.json atomically."""
        fields = asdict(result) | asdict(origin)
        write_text(self.place / RESULT, json.dumps(fields, indent=1) + "\n")

    def report(self, result: Result, *, kept: bool = False) -> Path:
        """Write report.html; `kept`: the result was read from this folder."""
        from ..report.page import page  # a sweep's processes start faster without jinja2

        try:
            text = page(result, _text(self.place) or "")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            if not kept:
                raise
            raise self.damaged() from error
        write_text(self.place / REPORT, text)
        return self.place / REPORT

    def read(self) -> tuple[Result, Origin]:
        """Return the result, and how it was asked for. Raises RunFailed."""
        path = self.path / RESULT
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            origin = Origin(data.pop("hosts_given", None), data.pop("backend", None))
            if not isinstance(origin.hosts_given, int | None):
                raise TypeError
            return Result.from_json(data), origin
        except FileNotFoundError:
            if (self.path / SCENARIO).is_file():
                raise RunFailed(
                    f"`{self.path}` has no {RESULT}: its run was killed or still runs",
                    hint=f"`shoal sim run {self.path / SCENARIO}` runs it again",
                ) from None
            raise RunFailed(
                f"`{self.path}` is not a run folder: it has no {RESULT}",
                hint="`shoal sim run FILE --out DIR` creates one",
            ) from None
        except NotADirectoryError:
            raise RunFailed(
                f"`{self.path}` is a file", hint=f"give its folder: `{self.path.parent}`"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self.damaged() from None

    def damaged(self) -> RunFailed:
        """Return the error for a folder that cannot be read."""
        return RunFailed(
            f"`{self.path / RESULT}` is damaged, or of another version",
            hint=f"`shoal sim run {self.path / SCENARIO} --out {self.path} --force` makes it again",
        )


def _text(folder: Path) -> str | None:
    """Return the scenario in a folder, or None."""
    try:
        return (folder / SCENARIO).read_bytes().decode(errors="replace")
    except OSError:
        return None


def free(folder: Path) -> Path:
    """Return the first of NAME.2, NAME.3, … that does not exist."""
    number = 2
    while (found := folder.parent / f"{folder.name or 'run'}.{number}").exists():
        number += 1
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file atomically. Raises RunFailed."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> RunFailed:
    """Return the error for a file or folder that cannot be written."""
    what = (error.strerror or str(error)).lower()
    hint = "free some space there" if error.errno == errno.ENOSPC else "choose another `--out DIR`"
    return RunFailed(f"`{path}` cannot be written: {what}", hint=hint)
