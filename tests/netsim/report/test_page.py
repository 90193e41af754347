"""Reports: whole, self-contained, and safe against names that are HTML."""

import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest
from markupsafe import Markup

from shoal.netsim.report import plots
from shoal.netsim.report.page import page
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.result import RunResult
from shoal.netsim.scenario.run import ScenarioRun

TEXT = """\
[sim]
name = "{name}"
duration = "10s"
[[host]]
name = "a"
count = 3
program = "udp-echo"
settings = {{ every = "200ms" }}
[[host]]
name = "b"
nat = "linux-drop"
link = "dsl"
program = "udp-echo"
[[step]]
at = "2s"
action = "partition"
groups = [["a1"], ["a2"]]
for = "3s"
[[step]]
at = "6s"
action = "crash"
target = "a3"
[[expect]]
metric = "rtt.p50"
op = "<"
value = "1ms"
"""
HOSTILE = "<script>alert(1)</script> & $x$ ' onload="


def result(name: str = "plain") -> RunResult:
    found = ScenarioRun(parse(TEXT.format(name=name)), 1).go()
    found.versions = {"shoal": "0", "python": HOSTILE}
    return found


class Tags(HTMLParser):
    """Parser that checks that every tag is closed, and collects the tags."""

    VOID = ("meta", "br")
    OPTIONAL = ("tr", "td", "th", "p")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag not in self.VOID + self.OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.OPTIONAL:
            assert self.open.pop() == tag


@pytest.mark.parametrize("with_plots", [True, False])
def test_a_page_is_whole_and_fetches_nothing(
    monkeypatch: pytest.MonkeyPatch, with_plots: bool
) -> None:
    if with_plots:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "available", lambda: with_plots)
    text = page(result())
    tags = Tags(text)
    assert not tags.open and "script" not in tags.seen
    assert all(link.startswith(("#", "data:")) for link in tags.links)
    assert "url(http" not in text and "@import" not in text
    assert ("svg" in tags.seen) is with_plots
    assert ("pip install matplotlib" in text) is not with_plots
    for word in ("linux-drop", "partition", "rtt.p50 &lt; 1 ms", "failed", "digest", "a1 a2"):
        assert word in text, word


def test_hostile_names_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    run = result(HOSTILE)
    for host in run.hosts:
        host.kind = HOSTILE
    run.pairs["classes"] = [HOSTILE for _ in run.pairs["classes"]]
    run.happenings[0].what = run.happenings[0].target = HOSTILE
    run.metrics = {HOSTILE: 1.0, HOSTILE + "2": {"count": 0}, "drops": {HOSTILE: 1}}
    run.samples = {HOSTILE: [1.0, 2.0]}
    run.ended = HOSTILE
    for with_plots in (True, False):
        if with_plots and not plots.available():
            continue
        monkeypatch.setattr(plots, "available", lambda with_plots=with_plots: with_plots)
        text = page(run)
        assert "script" not in Tags(text).seen
        assert "&lt;script&gt;" in text and "<script" not in text


def test_plots_are_images() -> None:
    pytest.importorskip("matplotlib")
    run = result()
    made = plots.of(run)
    images = [*made["distributions"], made["topology"], made["matrix"], made["timeline"]]
    for image in images:
        root = ET.fromstring(str(image))
        assert root.tag.endswith("svg")
    assert [str(image) for image in plots.of(run)["distributions"]] == list(
        map(str, made["distributions"])
    )


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect every figure that is plotted from now on, drawn."""
    pytest.importorskip("matplotlib")
    found: list[Any] = []

    def keep(figure: Any) -> Markup:
        figure.draw_without_rendering()
        found.append(figure)
        return Markup("<svg></svg>")

    monkeypatch.setattr(plots, "svg", keep)
    return found


def test_legends_stand_beside_the_data(figures: list[Any]) -> None:
    run = result()
    run.hosts[0].up = False
    page(run)
    legends = [(axes, axes.get_legend()) for figure in figures for axes in figure.axes]
    boxes = [(axes.get_window_extent(), legend.get_window_extent())
             for axes, legend in legends if legend is not None]  # fmt: skip
    assert len(boxes) >= 4
    assert not any(data.overlaps(legend) for data, legend in boxes)
    words = {text.get_text() for _, legend in legends if legend for text in legend.get_texts()}
    assert {"delivered", "dropped", "hosts up", "up at the end", "off at the end"} < words


def test_ticks_are_whole_values(figures: list[Any]) -> None:
    """Not `+1.0001e5`, and not `1e6` in the corner."""
    plots.distribution("rtt", [100.00001, 100.00002, 100.00004])
    plots.distribution("throughput", [1e9, 3e9, 9e9])
    plots.distribution("rtt", [0.001, 5.0])  # a logarithmic axis
    labels = []
    for figure in figures:
        axis = figure.axes[0].xaxis
        assert axis.get_major_formatter().get_offset() == ""
        labels.append([text.get_text() for text in axis.get_ticklabels() if text.get_text()])
    assert labels[0][0].startswith("100,000.0") and "20,000" in labels[1]
    assert {"1", "10", "100", "1,000"} <= {*labels[2]}


def test_the_quantiles_of_a_plot_are_those_of_the_table(figures: list[Any]) -> None:
    plots.distribution("rtt", [0.1, 0.2, 0.3, 0.4])
    words = {text.get_text() for text in figures[0].axes[0].get_legend().get_texts()}
    assert words == {"rtt", "p50: 250 ms", "p95: 385 ms"}


def test_the_scenario_is_in_the_report_with_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    text = TEXT.format(name="plain & simple")
    found = page(result(), text)
    assert "name = &#34;plain &amp; simple&#34;" in found
    line = 1 + text.splitlines().index("[[expect]]")
    assert f'<a href="#L{line}">line {line}</a>' in found
    assert f'<span id="L{line}">{line}</span>[[expect]]' in found
    assert not Tags(found).open
    assert "The scenario</h2>" not in page(result())


def test_marks_and_figures_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "svg", lambda figure: Markup("<svg></svg>"))
    found = " ".join(page(result()).split())
    for words in ("a diamond is a step without an end", "Dotted: 95 % of them", "7/8 means 7 of 8",
                  "grey that there was no", "packets dropped: by a partition or another fault",
                  "runs with the same digest had the same packets"):  # fmt: skip
        assert words in found, words


def test_empty_sections_are_left_out() -> None:
    assert plots.topology([]) == "" and plots.matrix({"classes": ["a"], "cells": []}) == ""
    run = result()
    run.series = {"at": []}
    assert plots.timeline(run) == ""


def test_a_run_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[sim]\nname = "x"\nduration = "1s"\n[[host]]\nname = "a"\nprogram = "idle"\n'
    found = page(ScenarioRun(parse(text), 1).go())
    assert "No step was asked for" in found and not re.search(r"Expectations", found)


def test_the_headline_comes_first() -> None:
    text = page(result())
    places = [text.index(word) for word in (
        "of the echoes answered", "1 of 1 failed", "What happened", "All figures",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "there and back (median)" in text[: places[1]] and " ms</dt>" in text[: places[1]]


def test_a_matplotlib_that_does_not_load_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plots.available()
    assert "pip install matplotlib" in page(result())
