"""Long measurements: one line per seed in a JSONL file, resumed there after a stop."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import SimError

Figures = dict[str, Any]
_BEGINNING = b'{"seed": '


class Measurement:
    """Lines of one measurement: `seed`, the parameters (`settings`), the figures.

    A line counts only if its settings are the same; another measurement may share the file. A line
    that a crash left incomplete at the end is cut off.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, object]) -> None:
        self._path = path
        self._settings = json.loads(json.dumps(dict(settings)))
        self._lines: dict[int, Figures] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
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
        """Write a line; it is on the disk when this returns."""
        self._lines[seed] = figures
        if self._path is None:
            return
        item = {"seed": seed, "settings": self._settings, "figures": figures}
        with self._path.open("ab") as file:
            file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def figures(self, seeds: Iterable[int]) -> list[Figures]:
        """Return the figures of these seeds."""
        return [self._lines[seed] for seed in seeds]


def measure(
    one: Callable[[int], Figures],
    seeds: Iterable[int],
    *,
    settings: Mapping[str, object],
    path: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Figures]:
    """Call `one(seed)` for each seed that the file does not have yet; return the figures of all.

    Without a `path` nothing is stored. `say` gets one line per seed. Raises SimError if the file is
    not one of a measurement.
    """
    wanted = list(dict.fromkeys(seeds))
    kept = Measurement(path, settings)
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
