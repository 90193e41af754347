"""Options and set-up for all tests."""

import gc
import signal
import threading
import time
from collections.abc import Generator
from typing import TypeVar

import psutil
import pytest
from hypothesis import settings
from trio._core import _run

from shoal.netsim.determinism.schedule import scheduling

GROWTH_BYTES = 500 << 20  # of the process, between two full collections of garbage
NEVER = 1 << 30
COLLECTING_PAUSE = 5.0  # seconds between two lines while tests are collected
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# Property tests try the same examples each time, so that a change is judged by what it changes.
# `make test-long` tries new ones. No deadlines: the machines that run the tests are shared.
settings.register_profile("same-examples", derandomize=True, deadline=None)
settings.register_profile("new-examples", deadline=None, print_blob=True)
settings.load_profile("same-examples")

# A process in the background of a script ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail tests that would skip: CI has to run what the project promises",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return _refuse_skip(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return _refuse_skip(report, collector.config)


def _refuse_skip(report: Report, config: pytest.Config) -> Report:
    """Turn a skip into a failure that gives its reason, under `--no-skips`."""
    if report.skipped and config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} did not run, and `--no-skips` was given: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without looking for garbage meanwhile: next to all objects stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)


@pytest.fixture
def own_garbage() -> Generator[None]:
    """Let collections of garbage look only at the objects of this test: a walk through what all
    tests have made takes half a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def same_order(request: pytest.FixtureRequest) -> Generator[None]:
    """Let trio's tasks run in the same order each time, drawn from the name of the test.

    Trio orders tasks that are ready at the same instant at random, and cancels tasks and orders
    equal deadlines by their places in memory. A test in virtual time would then fail in one run of
    hundreds and pass in the next. `make test-long` tries new orders.
    """
    if request.config.getoption("hypothesis_profile") == "new-examples":
        yield
        return
    _run._r.seed(request.node.nodeid)
    with pytest.MonkeyPatch.context() as patch:
        if "autojump_clock" in request.fixturenames:
            for replacement in scheduling(_run._r):
                patch.setattr(*replacement)
        yield


class FullCollections:
    """Collects the garbage of all ages between two tests, when memory has grown.

    Left to the interpreter, such collections took a tenth of the time of all tests: each walks the
    millions of objects of the imported tests, and the next comes when a quarter more have survived
    than after the last. After a run of the simulator, which looks at its own objects alone, few
    have. Young objects are collected as ever.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._most: int | None = None

    def _memory(self) -> int:
        return int(self._process.memory_info().rss)

    def pytest_runtest_logfinish(self) -> None:
        if self._most is None:
            self._most = self._memory() + GROWTH_BYTES
        elif self._memory() > self._most:
            gc.collect()
            self._most = self._memory() + GROWTH_BYTES


class Collecting:
    """Says what xdist's processes are at before the first test: they import all test files, each of
    them, which takes half a minute on two cores."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._nodes = 0
        self._ready = 0
        self._began = 0.0
        self._over = threading.Event()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: list[object]) -> None:
        self._nodes, self._began = len(specs), time.monotonic()
        self._say(f"{self._nodes} processes import the tests, about half a minute")
        threading.Thread(target=self._tell, daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        self._ready += 1
        if self._ready == self._nodes:
            self._over.set()
            self._say(f"{len(ids)} tests found after {time.monotonic() - self._began:.0f} s")

    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def _tell(self) -> None:
        while not self._over.wait(COLLECTING_PAUSE):
            took = time.monotonic() - self._began
            self._say(f"{took:.0f} s: {self._ready} of {self._nodes} processes are ready")

    def _say(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collecting(config))
    config.pluginmanager.register(FullCollections())
