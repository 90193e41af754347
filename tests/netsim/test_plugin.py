"""The pytest plugin, used by tests that pytest runs inside this one."""

import pytest

pytest_plugins = ["pytester"]

ECHO = """
import trio

async def test_in_virtual_time(world):
    a, b = world.host("a"), world.host("b")
    server = await b.run(bound)
    async with trio.open_nursery() as nursery:
        b.start_soon(nursery, echo, server)
        assert await a.run(ask, b.addresses()[0]) == b"hello"
        nursery.cancel_scope.cancel()
    assert 0.019 < trio.current_time() < 0.022

async def bound():
    server = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
    await server.bind(("0.0.0.0", 7))
    return server

async def echo(server):
    data, source = await server.recvfrom(100)
    await server.sendto(data, source)
    await trio.sleep_forever()

async def ask(address):
    client = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
    await client.sendto(b"hello", (address, 7))
    return (await client.recvfrom(100))[0]
"""


def run(pytester: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(code)
    return pytester.runpytest_inprocess("-p", "shoal.netsim.plugin", "-W", "error", *args)


def test_an_async_test_runs_in_its_world(pytester: pytest.Pytester) -> None:
    run(pytester, ECHO).assert_outcomes(passed=1)


def test_a_plain_test_gets_a_world_too(pytester: pytest.Pytester) -> None:
    code = "def test_it(world):\n    assert world.seed == 1 and not world.hosts"
    run(pytester, code).assert_outcomes(passed=1)


SEEDS = """
import pytest

@pytest.mark.seeds(3)
async def test_it(world):
    assert world.seed != 2

@pytest.mark.seeds(5, 9)
async def test_those(world):
    assert world.seed in (5, 9)
"""


def test_a_failure_tells_its_seed_and_how_to_repeat_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, SEEDS)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["seed 2, at 0 s of virtual time"])
    result.stdout.fnmatch_lines(["repeat it with: pytest *::test_it --sim-seed 2"])


def test_a_given_seed_is_the_only_one(pytester: pytest.Pytester) -> None:
    run(pytester, SEEDS, "--sim-seed", "2", "-k", "test_it").assert_outcomes(failed=1, deselected=1)
    run(pytester, SEEDS, "--sim-seed", "4", "-k", "test_it").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import pytest\n@pytest.mark.seeds(0)\nasync def test_it(world): ...", "at least one"),
        ("import pytest\n@pytest.mark.seeds('a')\nasync def test_it(world): ...", "seeds(50)"),
        ("import pytest\n@pytest.mark.seeds(2)\ndef test_it(): ...", "needs a `world`"),
    ],
)
def test_a_wrong_marker_is_refused(pytester: pytest.Pytester, code: str, word: str) -> None:
    result = run(pytester, code)
    assert result.ret != 0
    assert word in result.stdout.str() + result.stderr.str()


TRIO = """
import pytest, trio

MARK

async def test_it(world):
    await trio.sleep(3600)
"""


@pytest.mark.parametrize("mark", ["@pytest.mark.trio", "pytestmark = pytest.mark.trio"])
def test_a_world_in_real_time_is_refused(pytester: pytest.Pytester, mark: str) -> None:
    result = run(pytester, TRIO.replace("MARK\n\n" if mark[0] == "@" else "MARK", mark + "\n"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*takes `world` cannot have `@pytest.mark.trio`*"])


def test_trio_mode_is_no_way_around_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntrio_mode = true")
    result = run(pytester, TRIO.replace("MARK", ""))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*hint: leave the mark out*"])


FOREIGN = """
import pytest, trio

@pytest.fixture
def world():
    return "another"

def test_its_own_world(world):
    assert world == "another"

@pytest.mark.trio
async def test_real_time():
    await trio.sleep(0)

"""


def test_other_tests_are_not_affected(pytester: pytest.Pytester) -> None:
    run(pytester, FOREIGN).assert_outcomes(passed=2)
