"""Plots of a run as SVG to be put into a page. matplotlib is optional and imported late."""

import io
import math
from collections import Counter
from importlib import import_module
from typing import Any, Final

from markupsafe import Markup

WIDTH: Final = 8.0  # inches
UNITS: Final = {"throughput": ("Mbit/s", 8e-6)}  # else milliseconds
MOST_DOTS: Final = 400  # of the topology, by kind
BLUE, RED, GREY = "#2b6cb0", "#b3261e", "#9aa5b1"


def available() -> bool:
    """Whether plots can be made."""
    try:
        import_module("matplotlib.figure")
    except ImportError:
        return False
    return True


def of(run: dict[str, Any]) -> dict[str, Any]:
    """Every plot of a run; none without matplotlib."""
    if not available():
        return {
            "available": False, "distributions": [], "topology": "", "matrix": "", "timeline": "",
        }  # fmt: skip
    return {
        "available": True,
        "distributions": [
            distribution(name, values) for name, values in run["samples"].items() if values
        ],
        "topology": topology(run["hosts"]),
        "matrix": matrix(run["pairs"]),
        "timeline": timeline(run),
    }


def _axes(height: float, width: float = WIDTH) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> Markup:
    """The figure's SVG element: no date, no random ids, nothing fetched."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "shoal", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return Markup(text.getvalue()[text.getvalue().index("<svg") :])


def _plain(name: str) -> str:
    """A name as matplotlib shall write it: `$` would start a formula."""
    return name.replace("$", r"\$")


def distribution(name: str, values: list[float]) -> Markup:
    """The cumulative distribution of ascending samples."""
    unit, factor = UNITS.get(name, ("ms", 1e3))
    figure, axes = _axes(2.6)
    shown = [value * factor for value in values]
    shares = [(number + 1) / len(shown) for number in range(len(shown))]
    axes.step([shown[0], *shown], [0, *shares], where="post", color=BLUE)
    if shown[0] > 0 and shown[-1] / shown[0] > 50:
        axes.set_xscale("log")
    axes.set(xlabel=f"{name}, {unit}", ylabel="share of samples", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    return _svg(figure)


def topology(hosts: list[dict[str, Any]]) -> Markup | str:
    """Every host as a dot in the row of its kind of gateway; those that are off are hollow."""
    if not hosts:
        return ""
    from matplotlib.ticker import MaxNLocator

    kinds = [kind for kind, _ in Counter(host["kind"] for host in hosts).most_common()]
    figure, axes = _axes(0.8 + 0.42 * len(kinds))
    for row, kind in enumerate(kinds):
        mine = [host for host in hosts if host["kind"] == kind][:MOST_DOTS]
        for up, face in ((True, BLUE), (False, "white")):
            places = [n for n, host in enumerate(mine) if host["up"] is up]
            rows = [-row - 0.11 * (n % 5 - 2) * (len(mine) > 40) for n in places]
            axes.scatter(
                [n + 1 for n in places],
                rows,
                s=16,
                facecolors=face,
                edgecolors=BLUE,
                linewidths=0.8,
            )
    axes.set_yticks([-row for row in range(len(kinds))], [_plain(kind) for kind in kinds])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="hosts", ylim=(0.5 - len(kinds), 0.5))
    return _svg(figure)


def matrix(pairs: dict[str, Any]) -> Markup | str:
    """The share of pairs that met, by both kinds."""
    classes, cells = pairs.get("classes", []), pairs.get("cells", [])
    if len(classes) < 2:
        return ""
    side = 2.2 + 0.42 * len(classes)
    figure, axes = _axes(side, min(WIDTH, side + 1.6))
    shares = [[met / tried if tried else math.nan for met, tried in row] for row in cells]
    image = axes.imshow(shares, cmap="RdYlBu", vmin=0, vmax=1)
    names = [_plain(name) for name in classes]
    axes.set_xticks(range(len(classes)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), names)
    figure.colorbar(image, ax=axes, label=f"share {pairs['what']}", shrink=0.8)
    return _svg(figure)


def timeline(run: dict[str, Any]) -> Markup | str:
    """Packets per second and hosts that are up, with the steps above."""
    series = run["series"]
    if not series.get("at"):
        return ""
    from matplotlib.ticker import MaxNLocator

    steps = run["happenings"]
    figure, axes = _axes(3.0 + 0.2 * len({item["what"] for item in steps}))
    at = [0.0, *series["at"]]
    for name, colour in (("delivered", BLUE), ("dropped", RED)):
        rates = _rates(at, series[name])
        axes.step(at, [rates[0], *rates], where="pre", color=colour, label=f"{name}, packets/s")
    right = axes.twinx()
    right.step(series["at"], series["up"], where="post", color=GREY, label="hosts up")
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.label.set_color(GREY)
    right.set(ylabel="hosts up", ylim=(0, max(series["up"]) * 1.1 + 1))
    _steps(axes, steps, run["virtual"])
    axes.set(xlabel="virtual time, s", ylabel="packets/s", xlim=(0, max(run["virtual"], at[-1])))
    axes.legend(loc="upper left", fontsize="small")
    return _svg(figure)


def _rates(at: list[float], counts: list[float]) -> list[float]:
    """Per second, between each sample and the one before."""
    before = [0.0, *counts]
    return [
        (after - before[number]) / max(at[number + 1] - at[number], 1e-9)
        for number, after in enumerate(counts)
    ]


def _steps(axes: Any, steps: list[dict[str, Any]], end: float) -> None:
    """Shade what lasts, mark what is at once; the words stand above."""
    rows = {what: row for row, what in enumerate(dict.fromkeys(item["what"] for item in steps))}
    for item in steps:
        if item["until"] is not None:
            axes.axvspan(item["at"], min(item["until"], end), color=RED, alpha=0.12, lw=0)
        axes.axvline(item["at"], color=RED, lw=0.8, alpha=0.6)
        axes.annotate(
            _plain(item["what"]), (item["at"], 1.02 + 0.07 * rows[item["what"]]),
            xycoords=("data", "axes fraction"), fontsize="small", color=RED,
        )  # fmt: skip
