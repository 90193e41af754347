"""Long measurements over many seeds. The result of each seed is a line in a JSONL file, so that an
interrupted measurement can be resumed.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import SimError

Figures = dict[str, Any]
_BEGINNING = b'{"seed": '


class SeedLines:
    """Results of one measurement in a JSONL file. Each line has a seed, the parameters of the
    measurement (`settings`) and the figures measured with that seed.

    Lines with other settings belong to another measurement in the same file, and are ignored. An
    incomplete line at the end of the file, left by a crash, is removed.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, object]) -> None:
        self._path = path
        self._settings = json.loads(json.dumps(dict(settings)))
        self._lines: dict[int, Figures] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        """Load the lines of the file that have the same settings. Raises SimError if a line does
        not have the expected form.
        """
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        torn = data[len(whole) :]
        if not _BEGINNING.startswith(torn[: len(_BEGINNING)]):
            raise SimError(f"{path}: its last line is not one of a measurement")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                item = json.loads(line)
                seed, settings, figures = item["seed"], item["settings"], item["figures"]
            except (ValueError, KeyError, TypeError):
                raise SimError(f"{path}: line {number} is not one of a measurement") from None
            if settings == self._settings:
                self._lines[seed] = figures
        if torn:
            os.truncate(path, len(whole))

    def __contains__(self, seed: int) -> bool:
        return seed in self._lines

    def add(self, seed: int, figures: Figures) -> None:
        """Store the figures of a seed, and append a line to the file. The line is durable when this
        method returns.
        """
        self._lines[seed] = figures
        if self._path is None:
            return
        item = {"seed": seed, "settings": self._settings, "figures": figures}
        with self._path.open("ab") as file:
            file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def figures(self, seeds: Iterable[int]) -> list[Figures]:
        """Return the figures of these seeds, in this order."""
        return [self._lines[seed] for seed in seeds]


def measure(
    one: Callable[[int], Figures],
    seeds: Iterable[int],
    *,
    settings: Mapping[str, object],
    path: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Figures]:
    """Call `one(seed)` for each seed whose result is not in the file yet. Return the figures of all
    seeds.

    If `path` is None, nothing is stored. `say` is called with a line of text for each seed. Raises
    SimError if the file is not that of a measurement.
    """
    wanted = list(dict.fromkeys(seeds))
    kept = SeedLines(path, settings)
    for count, seed in enumerate(wanted, 1):
        known = seed in kept
        if not known:
            kept.add(seed, one(seed))
        (found,) = kept.figures([seed])
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in found.items())
        say(f"seed {seed} ({count} of {len(wanted)}{', known' if known else ''}): {figures}")
    return kept.figures(wanted)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
