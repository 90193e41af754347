"""Reports: whole, self-contained, and safe against names that are HTML."""

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict
from html.parser import HTMLParser
from typing import Any

import pytest

from shoal.netsim.report import plots
from shoal.netsim.report.page import page
from shoal.netsim.scenario.parse import parse
from shoal.netsim.scenario.run import Run

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


def result(name: str = "plain") -> dict[str, Any]:
    found = Run(parse(TEXT.format(name=name)), 1).go()
    found.versions = {"shoal": "0", "python": HOSTILE}
    return asdict(found)


class Tags(HTMLParser):
    """Every tag that has to be closed is, and which there are."""

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
    for host in run["hosts"]:
        host["kind"] = HOSTILE
    run["pairs"]["classes"] = [HOSTILE for _ in run["pairs"]["classes"]]
    run["happenings"][0] |= {"what": HOSTILE, "target": HOSTILE}
    run["metrics"] = {HOSTILE: 1.0, HOSTILE + "2": {"count": 0}, "drops": {HOSTILE: 1}}
    run["samples"] = {HOSTILE: [1.0, 2.0]}
    run["ended"] = HOSTILE
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


def test_what_there_is_nothing_of_is_left_out() -> None:
    assert plots.topology([]) == "" and plots.matrix({"classes": ["a"], "cells": []}) == ""
    assert plots.timeline({"series": {"at": []}}) == ""


def test_a_run_without_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[sim]\nname = "x"\nduration = "1s"\n[[host]]\nname = "a"\nprogram = "idle"\n'
    found = page(asdict(Run(parse(text), 1).go()))
    assert "No step was asked for" in found and not re.search(r"Expectations", found)


def test_what_a_reader_looks_for_stands_first() -> None:
    text = page(result())
    places = [text.index(word) for word in (
        "of the echoes answered", "1 of 1 failed", "What happened", "All figures",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "there and back (median)" in text[: places[1]] and " ms</dt>" in text[: places[1]]


def test_a_matplotlib_that_does_not_load_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plots.available()
    assert "pip install matplotlib" in page(result())
