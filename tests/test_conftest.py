"""`--no-skips`, with which CI fails if it cannot run what the project promises."""

import threading
from pathlib import Path

import pytest

from tests.conftest import GROWTH_BYTES, Collecting, FullCollections

pytest_plugins = ["pytester"]
CONFTEST = (Path(__file__).parent / "conftest.py").read_text()
SKIPS = {
    "in a test": "import pytest\ndef test_it(): pytest.skip('no kernel')",
    "by a mark": "import pytest\n@pytest.mark.skipif(1, reason='no kernel')\ndef test_it(): pass",
    "of a module": "import pytest\npytest.importorskip('no_kernel')\ndef test_it(): pass",
}


@pytest.mark.parametrize("code", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_fails_only_where_nothing_may_be_skipped(
    pytester: pytest.Pytester, code: str
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(code)
    assert pytester.runpytest_inprocess().parseoutcomes() == {"skipped": 1}
    result = pytester.runpytest_inprocess("--no-skips")
    assert result.ret != 0
    result.stdout.re_match_lines([".*did not run, and `--no-skips` was given:.*no.kernel.*"])


def test_an_expected_failure_is_no_skip(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): raise ValueError")
    assert pytester.runpytest_inprocess("--no-skips").parseoutcomes() == {"xfailed": 1}


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.told = threading.Event()

    def ensure_newline(self) -> None:
        pass

    def write_line(self, line: str) -> None:
        self.lines.append(line)
        if len(self.lines) > 1:
            self.told.set()


def test_the_wait_for_the_processes_of_xdist_is_told(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    reporter = Reporter()
    monkeypatch.setattr("tests.conftest.COLLECTING_PAUSE", 0.01)
    monkeypatch.setattr(pytestconfig.pluginmanager, "get_plugin", lambda _name: reporter)
    collecting = Collecting(pytestconfig)
    collecting.pytest_xdist_setupnodes([object(), object()])
    assert reporter.told.wait(5)
    collecting.pytest_xdist_node_collection_finished(object(), ["a"] * 7)
    collecting.pytest_xdist_node_collection_finished(object(), ["a"] * 7)
    assert reporter.lines[0] == "2 processes import the tests, about half a minute"
    assert reporter.lines[1] == "0 s: 0 of 2 processes are ready"
    assert reporter.lines[-1] == "7 tests found after 0 s"


def test_garbage_of_all_ages_is_collected_when_memory_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = 5 << 30
    collections, ran = FullCollections(), list[int]()
    monkeypatch.setattr(collections, "_memory", lambda: used)
    monkeypatch.setattr("gc.collect", lambda: ran.append(used))
    for grown in (0, GROWTH_BYTES - 1, 2, 0, GROWTH_BYTES):
        used += grown
        collections.pytest_runtest_logfinish()
    assert ran == [(5 << 30) + GROWTH_BYTES + 1]
    used += 1
    collections.pytest_runtest_logfinish()
    assert len(ran) == 2
