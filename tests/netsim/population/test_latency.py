"""Both published formats, errors in a file, and the computed matrix of the package."""

from pathlib import Path

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.population.latency import (
    DETOUR,
    ENDS_MS,
    MAX_SITES,
    SAME_SITE_S,
    LatencyMatrix,
    cities,
    matrix,
    planetlab,
    quantile,
    round_trip_ms,
    wondernetwork,
)
from shoal.netsim.world import World

HEADER = "from,to,avg_ms,pct_sol,min_ms,max_ms,mdev_ms\n"
PINGS = HEADER + (
    'Oslo,"New York United States, North America",80,60,79,81,0.1\n'
    'New+York,"Oslo Norway, Eurasia",100,60,79,81,0.1\n'
    'Oslo,"Lima Peru, South America",200,60,79,81,0.1\n'
    'Lima,"Oslo Norway, Eurasia",220,60,79,81,0.1\n'
    'New+York,"Limassol Cyprus, Eurasia",150,60,79,81,0.1\n'
    'Limassol,"Lima Peru, South America",300,60,79,81,0.1\n'
)
TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_planetlab_is_a_square_of_round_trips() -> None:
    found = planetlab(lines("0 10 30\n20\t0 40\n\n30 50 0\n"))
    assert len(found) == 3
    assert found(0, 1) == found(1, 0) == pytest.approx(0.0075)  # half of the mean of 10 and 20
    assert found(1, 2) == pytest.approx(0.0225)
    assert found(2, 2) == SAME_SITE_S


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ("0 1\n1 x\n", 2),
        ("0 1\n1 -1\n", 2),
        ("0 1\nnan 0\n", 2),
        ("0 inf\n1 0\n", 1),
        ("0 1\n1 0 2\n", 2),
        ("0 1\n", 1),
        ("0 " * (MAX_SITES + 1) + "\n", 1),
    ],
)
def test_planetlab_names_the_line_that_is_wrong(text: str, line: int) -> None:
    with pytest.raises(BadScenario) as caught:
        planetlab(lines(text))
    assert caught.value.line == line


def test_wondernetwork_has_cities_and_continents() -> None:
    found = wondernetwork(lines(PINGS))
    assert [site.name for site in found.sites] == ["Lima", "Limassol", "New York", "Oslo"]
    assert found.regions() == ["South America", "Eurasia", "North America"]
    assert found.of_region("Eurasia") == [1, 3]
    oslo, york, lima = found.row("Oslo"), found.row("New York"), found.row("Lima")
    assert found(oslo, york) == pytest.approx(0.045)  # 80 and 100
    assert found(york, oslo) == found(oslo, york)
    assert found(found.row("Limassol"), lima) == pytest.approx(0.15)  # one direction only: 300
    assert found(york, lima) == pytest.approx(0.1)  # never measured: the median, 200


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a,b\n", 1),
        (HEADER + "Oslo,x,1\n", 2),
        (HEADER + "Oslo,x,much,1,1,1,1\n", 2),
        (HEADER + "Oslo,x,-1,1,1,1,1\n", 2),
        (HEADER + 'Oslo,"x,1,1,1,1,1\n', 2),
        (HEADER, 0),
    ],
)
def test_wondernetwork_names_the_line_that_is_wrong(text: str, line: int) -> None:
    with pytest.raises(BadScenario) as caught:
        wondernetwork(lines(text))
    assert caught.value.line == line


def test_too_many_sites_are_refused() -> None:
    rows = (f'c{n},"c{n + 1} X, Y",1,1,1,1,1\n' for n in range(MAX_SITES + 5))
    with pytest.raises(BadScenario, match="more than"):
        wondernetwork([HEADER, *rows])


@pytest.mark.parametrize(
    ("text", "line"),
    [("a,eu,1\n", 1), ("a,eu,1,2\nb,eu,91,0\n", 2), ("a,eu,0,x\n", 1), ("a,eu,nan,0\n", 1)],
)
def test_a_table_of_cities_names_the_line_that_is_wrong(text: str, line: int) -> None:
    with pytest.raises(BadScenario) as caught:
        cities(lines(text))
    assert caught.value.line == line


def test_latency_grows_with_the_great_circle() -> None:
    """A quarter of the earth is 10,008 km: 100 ms of round trip in glass, without the detour."""
    pole, equator, east = (90.0, 0.0), (0.0, 0.0), (0.0, 90.0)
    quarter = ENDS_MS + DETOUR * 100.08
    assert round_trip_ms(pole, equator) == pytest.approx(quarter, abs=0.1)
    assert round_trip_ms(equator, east) == pytest.approx(quarter, abs=0.1)
    assert round_trip_ms(east, (0.0, -90.0)) == pytest.approx(ENDS_MS + DETOUR * 200.15, abs=0.1)
    assert round_trip_ms(east, east) == ENDS_MS
    found = cities(lines("# a comment\na,eu,0,0\nb,as,0,90\n"))
    assert found(0, 1) == pytest.approx(quarter / 2000, abs=1e-4)
    assert found.regions() == ["eu", "as"]


def test_the_core_matrix_is_of_this_earth() -> None:
    core = matrix()
    assert set(core.regions()) == {"eu", "na", "as", "sa", "oc", "af"}
    one_way = core.one_way()
    assert 0.05 < quantile(one_way, 0.5) < 0.11
    assert core(core.row("London"), core.row("Paris")) < 0.01
    assert core(core.row("London"), core.row("Sydney")) > 0.1
    with pytest.raises(BadScenario) as caught:
        core.row("Londn")
    assert caught.value.hint == "did you mean `London`?"
    with pytest.raises(BadScenario, match="no latency matrix"):
        matrix("planet")


def test_a_world_takes_a_matrix() -> None:
    world = World(latency=LatencyMatrix(matrix().sites, [[0.0, 80.0], [80.0, 0.0]]))
    a, b = world.host("a", site=0), world.host("b", site=1)
    plugs = a.attachments[0], b.attachments[0]
    assert world.internet.latency(*plugs) == pytest.approx(0.04)


needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="needs the published files next to the project"
)


def round_trips(places: LatencyMatrix) -> list[float]:
    """Return the 5th to the 95th percentile, in ms."""
    return [2000 * quantile(places.one_way(), share) for share in SHARES]


@needs_traces
def test_the_published_files_can_be_read() -> None:
    """Their quantiles are those in their descriptions."""
    with (TRACES / "planetlab" / "rtt_ms_490.txt").open() as file:
        lab = planetlab(file)
    assert len(lab) == 490
    assert 2000 * quantile(lab.one_way(), 0.5) == pytest.approx(135, rel=0.02)
    assert 2000 * quantile(lab.one_way(), 0.95) == pytest.approx(325, rel=0.02)
    with (TRACES / "wondernetwork" / "pings_2018.csv").open() as file:
        assert len(wondernetwork(file)) == 242


@needs_traces
def test_the_core_matrix_is_like_the_measured_ones() -> None:
    """The quantiles over the same cities, and the pairs, are as the docstring says."""
    core = matrix()
    with (TRACES / "wondernetwork" / "pings_2018.csv").open() as file:
        wonder = wondernetwork(file)
    theirs = {site.name for site in wonder.sites}
    both = [site.name for site in core.sites if site.name in theirs]
    pairs = [(a, b) for i, a in enumerate(both) for b in both[:i]]
    ours = [core(core.row(a), core.row(b)) for a, b in pairs]
    real = [wonder(wonder.row(a), wonder.row(b)) for a, b in pairs]
    assert len(both) > 70
    for share in SHARES:
        measured = quantile(sorted(real), share)
        assert quantile(sorted(ours), share) == pytest.approx(measured, rel=0.12), share
    assert quantile(sorted(ours), 0.5) == pytest.approx(quantile(sorted(real), 0.5), rel=0.04)
    off = sorted(abs(a / b - 1) for a, b in zip(ours, real, strict=True))
    assert quantile(off, 0.5) < 0.22
    assert quantile(off, 0.9) < 0.5
    with (TRACES / "planetlab" / "rtt_ms_490.txt").open() as file:
        lab = round_trips(planetlab(file))
    for one, other in zip(round_trips(core)[3:], lab[3:], strict=True):
        assert one == pytest.approx(other, rel=0.3)
