"""The pytest plugin: an async test with a `world` argument runs in virtual time.

Enable it with `-p shoal.netsim.plugin` or with `pytest_plugins` in the top conftest. Without that,
an installation of shoal adds no fixtures to other projects.

async def test_echo(world):
    alice, bob = world.host("alice"), world.host("bob")
    ...

Do not mark it with `@pytest.mark.trio`, which runs a test in real time, outside its world.

`@pytest.mark.seeds(50)` repeats a test with the seeds 1 to 50 (`seeds(3, 7)`: with those two);
`--sim-seed 7` runs every such test with that seed alone. A failure is shown with its seed and the
command that repeats it.
"""

import inspect
import shlex
from collections.abc import Sequence
from typing import Any, Final

import pytest

from .world import World

SEED: Final = 1
_SEEN: Final = pytest.StashKey[World]()
_TRIO: Final = (
    "a test that takes `world` cannot have `@pytest.mark.trio`: it would run in real time, "
    "outside its world\nhint: leave the mark out: the plugin of `world` runs async tests; "
    "with `trio_mode = true` keep such tests elsewhere"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("netsim")
    group.addoption(
        "--sim-seed", type=int, metavar="N", help="run tests that take `world` with this seed only"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "seeds(n) or seeds(a, b, …): run a test that takes `world` with these seeds"
    )


def seeds_of(marker: pytest.Mark | None, given: int | None) -> list[int]:
    """Return the seeds with which a test runs: `given` if it is set, otherwise the seeds of the
    marker. Raises UsageError if the marker's arguments are invalid.
    """
    if given is not None:
        return [given]
    if marker is None:
        return [SEED]
    numbers = marker.args
    if not numbers or marker.kwargs or not all(type(item) is int for item in numbers):
        raise pytest.UsageError("write `@pytest.mark.seeds(50)` or `@pytest.mark.seeds(3, 7)`")
    if len(numbers) > 1:
        return list(numbers)
    if numbers[0] < 1:
        raise pytest.UsageError(f"seeds({numbers[0]}): a test runs with at least one seed")
    return list(range(1, numbers[0] + 1))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `world` once for each of its seeds.

    Raises UsageError if the seeds of its marker are malformed.
    """
    marker = metafunc.definition.get_closest_marker("seeds")
    if "world" in metafunc.fixturenames and _is_ours(metafunc.config, metafunc.definition):
        given = metafunc.config.getoption("--sim-seed")
        seeds = seeds_of(marker, given)
        metafunc.parametrize("world", seeds, indirect=True, ids=[f"seed{n}" for n in seeds])
    elif marker is not None:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: `seeds` needs a `world` argument")


def _is_ours(config: pytest.Config, item: pytest.Item) -> bool:
    """Return whether the `world` that a test takes is the fixture of this plugin, and not a fixture
    or parameter of the project under test.
    """
    manager = item.session._fixturemanager
    found = manager.getfixturedefs("world", item)
    if found is None or found[-1].func.__module__ != __name__:
        return False
    marks = item.iter_markers("parametrize")
    return not any("world" in _names(mark.args[0]) for mark in marks)


def _names(given: str | Sequence[str]) -> list[str]:
    """Return the names in the first argument of `parametrize`."""
    return given.replace(",", " ").split() if isinstance(given, str) else list(given)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Return a new world that has the test's seed."""
    if request.node.get_closest_marker("trio") is not None:
        pytest.fail(_TRIO, pytrace=False)
    made = World(seed=request.param)
    request.node.stash[_SEEN] = made
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that takes `world` inside its world. Return None for any other test, so
    that pytest runs it.
    """
    made = pyfuncitem.stash.get(_SEEN, None)
    if made is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def main() -> None:
        await pyfuncitem.obj(**arguments)

    made.run(main)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the seed and the command that repeats the test to the report of a failed test."""
    report = yield
    made = item.stash.get(_SEEN, None)
    if made is not None and report.when == "call" and report.failed:
        report.sections.append(("world", _how_to_repeat(item, made)))
    return report


def _how_to_repeat(item: pytest.Item, made: World) -> str:
    plain = item.nodeid.partition("[")[0]
    return (
        f"seed {made.seed}, at {made.events.now:g} s of virtual time\n"
        f"repeat it with: pytest {shlex.quote(plain)} --sim-seed {made.seed}"
    )
