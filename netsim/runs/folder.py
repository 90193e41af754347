"""Folder of a run, with its scenario, figures, trace and report.

Decides which run may replace another. A new run may replace the run in a folder if it has the same
inputs or is started with `--force`. The new run is written to a hidden folder next to the earlier
one, and moved into place when it ends. An interrupted run therefore loses nothing.
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
from ..scenario.result import RunResult

SCENARIO, RESULT, TRACE, REPORT = "scenario.toml", "run.json", "trace.msgpack", "report.html"
METRICS, SERIES, SAMPLES, HOSTS = "metrics.csv", "series.csv", "samples.csv", "hosts.csv"
PRODUCTS: Final = (RESULT, TRACE, REPORT, METRICS, SERIES, SAMPLES, HOSTS)
"""Files that a run writes. Other files in the folder belong to the user and are not removed."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs that determine the packets of a run.

    `file` is the scenario's file, for messages. `hosts` is the value of `--hosts`, and `backend`
    that of `--backend`.
    """

    scenario: Scenario
    file: Path
    seed: int
    hosts: int | None = None
    backend: str = "sim"


@dataclass(frozen=True, slots=True)
class Origin:
    """Options with which a stored run was started: the values of `--hosts` and `--backend`."""

    hosts_given: int | None
    backend: str | None


class RunFolder:
    """Folder of one run, at `path`. Call `claim`, `make`, `write` and `settle` in this order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path
        """The folder to which the run is written. It is `path` unless an earlier run is there; then
        it is a hidden folder next to `path` until `settle`.
        """

        self.kept = True  # False if this run was discarded, because an earlier one got further
        self._same: RunResult | None = None  # result of an earlier run with the same inputs

    @property
    def trace(self) -> Path:
        """The path of the trace of the run that is being written."""
        return self.place / TRACE

    def claim(self, inputs: RunInputs, *, force: bool) -> None:
        """Check that a run with these inputs may be written to this folder, and choose `place`.

        Raises RunFailed if the run would replace other files, or, without `force`, another run.
        """
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
            return  # an earlier run was killed before it had a result
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

    def _other(self, inputs: RunInputs) -> str:
        """Describe how the inputs of the run in this folder differ from `inputs`.

        Return an empty text if they are the same.
        """
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
        """Create the folder `place` with the scenario and the files that the scenario names.

        Raises RunFailed if the disk refuses it.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            for name in PRODUCTS:
                (self.place / name).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        for name, text in scenario.files.items():
            write_text(self.place / name, text)
        write_text(self.place / SCENARIO, scenario.text)

    def settle(self, result: RunResult) -> str:
        """Move the run to its final folder, `path`. Return a note for the user, or an empty text.

        If an earlier run had the same inputs but got further, this run is discarded instead. If it
        had other packets, both are stored, this one in a new folder.

        Raises RunFailed if the disk refuses it.
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
        """Move the files of the new run over those of the earlier run.

        If `keep` is True, files that only the earlier run has written remain; otherwise they are
        removed.
        """
        new = {item.name for item in self.place.iterdir()}
        for name in () if keep else sorted(set(PRODUCTS) - new):
            (self.path / name).unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == RESULT):  # moves the result last
            os.replace(self.place / name, self.path / name)
        self.place.rmdir()
        self.place = self.path

    def discard(self) -> None:
        """Remove the run unless it is already in its final folder."""
        if self.place != self.path:
            with suppress(OSError):
                shutil.rmtree(self.place)
            self.place = self.path

    def write(self, result: RunResult, origin: Origin) -> None:
        """Write run.json atomically. Raises RunFailed if it cannot be written."""
        fields = asdict(result) | asdict(origin)
        write_text(self.place / RESULT, json.dumps(fields, indent=1) + "\n")

    def report(self, result: RunResult, *, kept: bool = False) -> Path:
        """Write report.html and return its path.

        Set `kept` to True if the result was loaded from this folder. Raises RunFailed if such a
        result is damaged, or if the report cannot be written.
        """
        from ..report.page import page  # imported late, so that a sweep's processes start faster

        try:
            text = page(result, _text(self.place) or "")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            if not kept:
                raise
            raise self.damaged() from error
        write_text(self.place / REPORT, text)
        return self.place / REPORT

    def read(self) -> tuple[RunResult, Origin]:
        """Load the result and the options with which the run was started.

        Raises RunFailed if the folder has no result or a damaged one.
        """
        path = self.path / RESULT
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            origin = Origin(data.pop("hosts_given", None), data.pop("backend", None))
            if not isinstance(origin.hosts_given, int | None):
                raise TypeError
            return RunResult.from_json(data), origin
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
        """Return the error for a folder whose result is damaged."""
        return RunFailed(
            f"`{self.path / RESULT}` is damaged, or of another version",
            hint=f"`shoal sim run {self.path / SCENARIO} --out {self.path} --force` makes it again",
        )


def _text(folder: Path) -> str | None:
    """Return the text of the scenario in a folder, or None if there is none."""
    try:
        return (folder / SCENARIO).read_bytes().decode(errors="replace")
    except OSError:
        return None


def free(folder: Path) -> Path:
    """Return a path for a new folder next to `folder`: the first of NAME.2, NAME.3, … that does not
    exist.
    """
    number = 2
    while (found := folder.parent / f"{folder.name or 'run'}.{number}").exists():
        number += 1
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file atomically. Raises RunFailed if it cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> RunFailed:
    """Return the error to raise if a file or folder cannot be written."""
    what = (error.strerror or str(error)).lower()
    hint = "free some space there" if error.errno == errno.ENOSPC else "choose another `--out DIR`"
    return RunFailed(f"`{path}` cannot be written: {what}", hint=hint)
