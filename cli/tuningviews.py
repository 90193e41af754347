"""Formats fine-tunings for the terminal: their state, settings, data, progress and loss curve."""

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from . import defaults, render
from .progress import ProgressDisplay

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ..node.control.messages.tuning import (
        CompanyView,
        DataView,
        PointView,
        ShownTuning,
        TuningSettingsView,
        TuningView,
    )
import math

HEADS = ("ID", "RESULT", "MODEL", "STATE", "STEP", "LOSS", "HELD OUT")


def row(item: "TuningView") -> list[str]:
    """Return a row of the list."""
    return [
        render.safe(item.id, 16),
        render.name(item.name),
        render.name(item.model, 32),
        render.safe(item.state, 12),
        f"{item.step} of {item.steps}",
        render.number(item.loss, ".3f"),
        render.number(item.held_out, ".3f"),
    ]


def shown(answer: "ShownTuning") -> str:
    """Format all of a fine-tuning, with its loss curve."""
    item, settings = answer.tuning, answer.settings
    rows = [
        ("fine-tuning", render.safe(item.id, 16)),
        ("state", state_words(item)),
        (result_word(item), render.name(item.name)
         + (f", root {render.short(item.adapter)}" if item.adapter else "")),
        ("from" if item.full else "model",
         f"{render.name(item.model)}, root {render.short(item.root)}"),
        ("step", f"{item.step} of {item.steps}"),
        *[("loss", words) for words in losses(item)],
        *[("together", words) for words in company_words(item)],
        ("time", time_words(item)),
        ("data", render.safe(item.source, 400)),
        *[("", words) for words in data_words(answer.data)],
        ("settings", f"{_size_words(settings)}, rate {settings.rate:g} "
         f"({render.count(settings.warmup, 'step')} of warmup), "
         f"{render.count(settings.batch, 'row')} of up to "
         f"{settings.length} tokens a step, seed {settings.seed}"),
        *([("modules", render.safe(" ".join(settings.modules), 160))] if settings.modules else []),
        ("files", render.safe(item.folder, 400)),
        *([("", render.safe(item.out, 400))] if item.out else []),
        ("started", datetime.fromtimestamp(item.made).isoformat(" ", "seconds")),
    ]  # fmt: skip
    return "\n".join([render.fields(rows), *curve(answer.curve)])


def result_word(item: "TuningView") -> str:
    """Return what the result is."""
    return "model" if item.full else "adapter"


def _size_words(settings: "TuningSettingsView") -> str:
    return "all weights" if settings.full else f"rank {settings.rank}, alpha {settings.alpha:g}"


def state_words(item: "TuningView") -> str:
    """Return the state, with the reason if there is one."""
    if item.state == "failed":
        return render.sentence(f"failed ({item.error}): {item.message}")
    if item.trouble:
        return render.sentence(f"{item.state}: {item.trouble}")
    return render.safe(item.state, 12)


def losses(item: "TuningView") -> list[str]:
    """Return words about the losses, as far as they are known."""
    found = [] if item.loss is None else [f"{item.loss:.3f} per token in training"]
    if item.held_out is not None:
        found.append(f"{item.held_out:.3f} on held-out rows")
    if item.best is not None and item.best != item.held_out:
        found[-1:] = [f"{found[-1]}; lowest {item.best:.3f}, after step {item.best_step}"]
    return found


def company_words(item: "TuningView") -> list[str]:
    """Return words about the others with which the adapter is averaged."""
    if item.together is None:
        return []
    found, company = [f"as {render.name(item.together)}"], item.company
    if company is not None:
        found = [f"{found[0]}, {_company_figures(company)}"]
        if company.told:
            found.append(render.sentence(company.told))
    return found


def _company_figures(company: "CompanyView") -> str:
    peers = f"with {render.count(company.peers, 'other')}" if company.peers else "no others yet"
    refused = [f"{render.count(company.refused, 'update')} refused"] if company.refused else []
    return ", ".join([peers, render.count(company.round, "round"), *refused])


def time_words(item: "TuningView") -> str:
    """Return words about the time that was spent, and that is left."""
    spent = f"{render.duration(item.spent_s)} in finished runs" if item.spent_s else ""
    left = f"about {render.duration(item.left_s)} left" if item.left_s is not None else ""
    speed = f"{item.speed:,.0f} tokens/s" if item.speed else ""
    return ", ".join(filter(None, (spent, left, speed))) or "-"


def data_words(data: "DataView") -> list[str]:
    """Return sentences about what became of the data."""
    found = [
        f"{render.count(data.rows, 'row')} with {render.tokens(data.tokens)}, of which "
        f"{data.counted:,} are learned"
    ]
    if data.split:
        found.append(f"split: {render.count(data.split, 'text')}, longer than a row")
    if data.cut:
        found.append(f"cut off: the end of {render.count(data.cut, 'row')}, longer than a row")
    if data.empty:
        found.append(f"skipped: {render.count(data.empty, 'line')} with nothing to learn")
    if data.whole_chats:
        found.append(
            f"learned whole: {render.count(data.whole_chats, 'conversation')}, as the template "
            "does not show what the assistant says"
        )
    return [*found, *broken_words(data)]


def broken_words(data: "DataView") -> list[str]:
    """Return sentences about the broken lines of the data."""
    if not data.bad:
        return []
    found = [f"skipped: {render.count(data.bad, 'broken line')}"]
    found += [f"line {bad.line}: {render.safe(bad.why, 200)}" for bad in data.named]
    if data.bad > len(data.named):
        found.append(f"and {data.bad - len(data.named)} more")
    return found


def length_words(answer: "ShownTuning") -> str:
    """Return a sentence about what a fine-tuning will do."""
    settings, learned = answer.settings, answer.data.rows - answer.settings.held_out
    each = min(settings.batch, learned)
    passes = settings.steps / max(1, -(-learned // settings.batch))
    held = f"{render.count(settings.held_out, 'row')} held out"
    return (
        f"{render.count(settings.steps, 'step')} of {render.count(each, 'row')}: "
        f"{passes:.1f} passes over {render.count(learned, 'row')}, {held}; "
        "the time left is shown after the first steps"
    )


def curve(points: "Sequence[PointView]") -> list[str]:
    """Return the rows of a chart of the losses: dots in training, `o` on held-out rows."""
    if not points:
        return []
    held = [(point.step, point.held_out) for point in points if point.held_out is not None]
    line = [(float(point.step), point.loss) for point in points]
    width = min(render.columns(), defaults.TEXT_WIDTH)
    words = "loss per token (o: on held-out rows)" if held else "loss per token"
    return ["", words, *chart(line, held, width=width)]


def figures(item: "TuningView") -> str:
    """Return one line of figures: step, losses, speed, time left."""
    parts = [f"step {item.step} of {item.steps}"]
    if item.loss is not None:
        parts.append(f"loss {item.loss:.3f}")
    if item.held_out is not None:
        parts.append(f"held out {item.held_out:.3f}")
    if item.speed and not item.trouble:
        parts.append(f"{item.speed:,.0f} tokens/s")
    if item.left_s is not None and not item.trouble:
        parts.append(f"{render.duration(item.left_s)} left")
    if item.company is not None:
        parts.append(_company_figures(item.company))
    if item.state != "running":
        parts.append(state_words(item))
    return " · ".join(parts)


class TuningBar(ProgressDisplay):
    """Progress of a fine-tuning on standard error: a bar on a terminal, and elsewhere a line every
    few seconds and whenever the state changes."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said = (0.0, "", False)

    def open(self) -> None:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            console = Console(stderr=True)
            self._progress = Progress(
                BarColumn(bar_width=None), TextColumn("{task.fields[figures]}", markup=False),
                console=console, transient=True, expand=True,
            )  # fmt: skip
            self._task = self._progress.add_task("", total=None, figures="")
            self._progress.start()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, item: "TuningView") -> None:
        """Show the current figures."""
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=item.step, total=item.steps, figures=figures(item)
            )
            return
        now, (at, *said) = time.monotonic(), self._said
        told = item.company.told if item.company is not None else None
        words, timed = f"{state_words(item)} {told or ''}", item.left_s is not None
        if [words, timed] != said or now - at >= defaults.TUNING_PAUSE:
            self._said = now, words, timed
            print(figures(item), file=sys.stderr, flush=True)
            if told:
                print(render.sentence(told), file=sys.stderr, flush=True)


Points = Sequence[tuple[float, float]]
"""(x, y) of each point. Points that are not finite are left out."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row


def chart(line: Points, marks: Points = (), *, width: int = 60, height: int = 10) -> list[str]:
    """Return the rows of a chart. `line` is drawn in dots, of which a letter has 2 x 4, and each of
    `marks` as `o`.

    The left column has the largest and the smallest y, the last row the range of x.
    """
    every = [(x, y) for x, y in (*line, *marks) if math.isfinite(x) and math.isfinite(y)]
    if not every:
        return []
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    wide, tall = max(right - left, 1e-9), max(high - low, 1e-9)
    inner = max(width - _WIDTH - 1, 4)

    def place(x: float, y: float, columns: int, rows: int) -> tuple[int, int]:
        column = round((x - left) / wide * (columns - 1))
        return column, round((high - y) / tall * (rows - 1))

    cells = [[0] * inner for _ in range(height)]
    for x, y in line:
        if math.isfinite(x) and math.isfinite(y):
            column, row = place(x, y, 2 * inner, 4 * height)
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    rows = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells]
    for x, y in marks:
        if math.isfinite(x) and math.isfinite(y):
            column, row = place(x, y, inner, height)
            rows[row][column] = "o"
    labels = {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    drawn = [
        f"{labels.get(at, ''):>{_WIDTH}} {''.join(row)}".rstrip() for at, row in enumerate(rows)
    ]
    begin, end = f"{left:g}", f"{right:g}"
    return [*drawn, f"{'':{_WIDTH}} {begin}{end:>{max(1, inner - len(begin))}}"]


_WIDTH = 8  # characters of a label
