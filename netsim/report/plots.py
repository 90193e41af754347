"""Plots of a run as SVG, for the report page. matplotlib is optional and imported on first use.

Legends are beside the axes. Ticks show full values, without an offset or a power of ten.
"""

import io
import math
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypedDict

from markupsafe import Markup

from ..scenario.format.metrics import quantile
from ..scenario.result import Happening, HostFigures, PairMatrix, RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH: Final = 9.0  # inches
UNITS: Final = {"throughput": ("Mbit/s", 8e-6)}  # (unit, factor); milliseconds for all others
BLUE, RED, GREY, PALE = "#2b6cb0", "#b3261e", "#6b7785", "#e3e8ee"


class Plots(TypedDict):
    """Plots of a run, each as SVG.

    A plot is empty without matplotlib, or if there is no data for it.
    """

    available: bool
    distributions: list[Markup]
    topology: Markup | str
    matrix: Markup | str
    timeline: Markup | str


def available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import_module("matplotlib.figure")
    except ImportError:
        return False
    return True


def of(run: RunResult) -> Plots:
    """Make every plot of a run. Without matplotlib, the plots are empty."""
    if not available():
        return {
            "available": False, "distributions": [], "topology": "", "matrix": "", "timeline": "",
        }  # fmt: skip
    return {
        "available": True,
        "distributions": [
            distribution(name, values)
            for name, values in run.samples.items()
            if values and values[0] < values[-1]
        ],
        "topology": topology(run.hosts),
        "matrix": matrix(run.pairs),
        "timeline": timeline(run),
    }


def _figure(height: float, width: float = WIDTH) -> "Figure":
    """Create a figure. Sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _axes(height: float, width: float = WIDTH) -> "tuple[Figure, Axes]":
    """Create a figure with one pair of axes. Sizes are in inches."""
    figure = _figure(height, width)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _whole_values(*axes: "Axis") -> None:
    """Make the ticks show full values, such as `1,500` or `97.5`."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    for axis in axes:
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def _legend(axes: "Axes") -> None:
    """Place the legend to the right of the axes, where it hides no data."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")


def svg(figure: "Figure") -> Markup:
    """Return the figure as an SVG element, without a date, random ids or external resources."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "shoal", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Markup(text.getvalue()[text.getvalue().index("<svg") :])


def _plain(name: str) -> str:
    """Escape a name for matplotlib, where `$` would start a formula."""
    return name.replace("$", r"\$")


def distribution(name: str, values: list[float]) -> Markup:
    """Plot the cumulative distribution of ascending samples.

    Lines mark the median and the 95th percentile.
    """
    unit, factor = UNITS.get(name, ("ms", 1e3))
    figure, axes = _axes(2.6)
    shown = [value * factor for value in values]
    shares = [100 * (number + 1) / len(shown) for number in range(len(shown))]
    axes.step([shown[0], *shown], [0, *shares], where="post", color=BLUE, label=_plain(name))
    for percent, style in ((50, "--"), (95, ":")):
        value = quantile(shown, percent / 100)
        label = f"p{percent}: {value:,.4g} {unit}"
        axes.axvline(value, color=GREY, lw=1.2, ls=style, label=label)
    if shown[0] > 0 and shown[-1] / shown[0] > 50:
        axes.set_xscale("log")
    _whole_values(axes.xaxis, axes.yaxis)
    axes.set(xlabel=f"{_plain(name)}, {unit}", ylabel="% of samples up to this", ylim=(0, 102))
    axes.grid(alpha=0.3)
    _legend(axes)
    return svg(figure)


def topology(hosts: list[HostFigures]) -> Markup | str:
    """Plot a bar for each kind of gateway: first the hosts that are up, then the hosts that are
    off.
    """
    if not hosts:
        return ""
    from matplotlib.ticker import MaxNLocator

    kinds = [kind for kind, _ in Counter(host.kind for host in hosts).most_common()]
    up = Counter(host.kind for host in hosts if host.up)
    off = Counter(host.kind for host in hosts if not host.up)
    figure, axes = _axes(0.8 + 0.32 * len(kinds))
    rows = list(range(len(kinds)))
    ups = [up[kind] for kind in kinds]
    axes.barh(rows, ups, height=0.65, color=BLUE, label="up at the end")
    if off:
        axes.barh(
            rows, [off[kind] for kind in kinds], left=ups, height=0.65, color=PALE,
            edgecolor=GREY, hatch="////", lw=0.6, label="off at the end",
        )  # fmt: skip
    axes.set_yticks(rows, [_plain(kind) for kind in kinds])
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _whole_values(axes.xaxis)
    axes.set(xlabel="hosts")
    _legend(axes)
    return svg(figure)


def matrix(pairs: PairMatrix) -> Markup | str:
    """Plot the share of pairs that met, for each two kinds of gateway.

    A cell is grey if no pair has these kinds. Returns an empty text for fewer than two kinds.
    """
    classes, cells = pairs.get("classes", []), pairs.get("cells", [])
    if len(classes) < 2:
        return ""
    side = 2.2 + 0.42 * len(classes)
    figure, axes = _axes(side, min(WIDTH, side + 1.6))
    axes.set_facecolor(PALE)
    shares = [[100 * met / tried if tried else math.nan for met, tried in row] for row in cells]
    image = axes.imshow(shares, cmap="RdYlBu", vmin=0, vmax=100)
    names = [_plain(name) for name in classes]
    axes.set_xticks(range(len(classes)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), names)
    figure.colorbar(image, ax=axes, label=f"% of the pairs {pairs['what']}", shrink=0.8)
    return svg(figure)


def timeline(run: RunResult) -> Markup | str:
    """Plot three rows over virtual time: the steps, packets per second, and the number of hosts up.

    Returns an empty text if there are no samples.
    """
    series = run.series
    if not series.get("at"):
        return ""
    steps = run.happenings
    from matplotlib.ticker import MaxNLocator

    at = [0.0, *series["at"]]
    end = max(run.virtual, at[-1])
    rows = list(dict.fromkeys(item.what for item in steps))
    heights = [0.22 * len(rows), 2.0, 0.9]
    figure = _figure(sum(heights) + 0.9)
    grid = figure.add_gridspec(3 if rows else 2, height_ratios=heights[0 if rows else 1 :])
    packets = figure.add_subplot(grid[-2])
    up = figure.add_subplot(grid[-1], sharex=packets)
    for name, colour in (("delivered", BLUE), ("dropped", RED)):
        rates = _rates(at, series[name])
        packets.step(at, [rates[0], *rates], where="pre", color=colour, label=name)
    counts = [series["up"][0], *series["up"]]
    up.fill_between(at, counts, step="post", color=PALE, ec=GREY, label="hosts up")
    for axes in (packets, up):
        axes.spines[["top", "right"]].set_visible(False)
        _whole_values(axes.xaxis, axes.yaxis)
        _legend(axes)
        for item in steps:
            if item.until is not None:
                axes.axvspan(item.at, min(item.until, end), color=RED, alpha=0.08, lw=0)
    packets.set(ylabel="packets/s", ylim=(0, None))
    packets.tick_params(labelbottom=False)
    up.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    up.set(ylabel="hosts", xlabel="virtual time, s", ylim=(0, max(series["up"]) * 1.15 + 1))
    if rows:
        _steps(figure.add_subplot(grid[0], sharex=packets), steps, rows, end)
    packets.set_xlim(0, end)
    return svg(figure)


def _rates(at: list[float], counts: list[float]) -> list[float]:
    """Convert counters to rates per second. `at` has the times of the samples, after a 0."""
    before = [0.0, *counts]
    return [
        (after - before[number]) / max(at[number + 1] - at[number], 1e-9)
        for number, after in enumerate(counts)
    ]


def _steps(axes: "Axes", steps: list[Happening], rows: list[str], end: float) -> None:
    """Plot a row for each kind of step: a bar for a step with an end, a diamond for one without."""
    for item in steps:
        row = rows.index(item.what)
        if item.until is None:
            axes.plot([item.at], [row], marker="D", ms=5, color=RED, clip_on=False)
        else:
            lasts = min(item.until, end) - item.at
            axes.barh([row], [lasts], left=[item.at], height=0.6, color=RED, alpha=0.6)
    axes.set_yticks(range(len(rows)), [_plain(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, labelsize="small")
