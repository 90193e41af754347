"""File `sweep.jsonl`, with the result lines of a sweep.

Its first line identifies the sweep. A line is appended whenever the run of a seed ends. An
interrupted sweep continues with the missing seeds.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from ..errors import RunFailed
from ..scenario.format.metrics import Metrics
from ..scenario.format.tables import Scenario
from .execute import versions
from .folder import free, unwritable, write_text

LINES: Final = "sweep.jsonl"


class SweepHead(TypedDict):
    """First line of the file. Result lines belong to one sweep only if all its fields agree."""

    scenario: str  # hash of the scenario's text and of the files that it names
    hosts: int | None
    versions: dict[str, str]


class VerdictLine(TypedDict):
    """Verdict on an expectation, with the fields of `ExpectationVerdict` in
    `scenario/result.py`.
    """

    text: str
    met: bool
    found: float | None
    line: NotRequired[int]
    shown: NotRequired[str]


class SeedLine(TypedDict):
    """Result of one seed: figures and verdicts. A failed run has only the reason, in `ended`."""

    seed: int
    met: bool
    ended: str
    virtual: NotRequired[float]
    real: NotRequired[float]
    digest: NotRequired[str]
    records: NotRequired[int]
    metrics: NotRequired[Metrics]
    verdicts: NotRequired[list[VerdictLine]]
    versions: NotRequired[dict[str, str]]  # sent by a cluster's node, but not stored


def failed_line(seed: int, why: str) -> SeedLine:
    """Return the result line of a seed whose run has no figures."""
    return {"seed": seed, "met": False, "ended": why}


class SweepFile:
    """The file of one sweep. `lines` has the result line of each seed that has run."""

    def __init__(
        self, folder: Path, scenario: Scenario, hosts: int | None, *, force: bool = False
    ) -> None:
        """Open the file and load its lines, or create it.

        Raises RunFailed if the file is damaged or has another sweep. With `force`, replaces the
        file instead.
        """
        self.path = folder / LINES
        digest = hashlib.sha256(scenario.text.encode())
        for name, text in sorted(scenario.files.items()):
            digest.update(f"\0{name}\0{text}".encode())
        self._head = SweepHead(scenario=digest.hexdigest(), hosts=hosts, versions=versions())
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            self.lines = self._read()
        except RunFailed:
            if not force:
                raise
            self.lines = self._begin()

    def _begin(self) -> dict[int, SeedLine]:
        """Create the file with its first line only."""
        write_text(self.path, json.dumps(self._head) + "\n")
        return {}

    def _read(self) -> dict[int, SeedLine]:
        """Load the result lines, and remove an incomplete last line from the file.

        Raises RunFailed if the file is damaged or has another sweep.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and (json.dumps(self._head) + "\n").encode().startswith(data):
            return self._begin()
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            if other := self._other(head):
                raise RunFailed(f"`{self.path}` holds another sweep: {other}",
                    hint=f"`--out {free(self.path.parent)}` keeps both, `--force` replaces it",
                )  # fmt: skip
            return {line["seed"]: line for line in lines}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise RunFailed(f"`{self.path}` is damaged", hint="`--force` replaces it") from None

    def _other(self, head: SweepHead) -> str:
        """Describe how the sweep on disk differs. Return an empty text if it is the same sweep."""
        if head["scenario"] != self._head["scenario"]:
            return "its scenario, or a file of that scenario, differs"
        if head["hosts"] != self._head["hosts"]:
            return f"its `--hosts` is {head['hosts'] or 'not given'}"
        for name, ours in versions().items():
            if head["versions"].get(name) != ours:
                return f"it ran with {name} {head['versions'].get(name)}, here is {ours}"
        return ""

    def add(self, line: SeedLine) -> None:
        """Append the result line of a seed to the file. Raises RunFailed if this is impossible."""
        self.lines[line["seed"]] = line
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from None


def lines_of(path: Path) -> list[SeedLine]:
    """Load the result lines of a sweep, sorted by seed. Raises RunFailed if the file is damaged."""
    try:
        data = path.read_bytes()
        _, *lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return sorted({line["seed"]: line for line in lines}.values(), key=lambda one: one["seed"])
    except (ValueError, TypeError, KeyError):
        raise RunFailed(
            f"`{path}` is damaged", hint="`shoal sim sweep FILE --force` makes it again"
        ) from None
