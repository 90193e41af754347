"""Tests of one session at its gateway."""

from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.generation import GenerationRun
from shoal.tasks.routing.paths import Hop
from tests.tasks.fake_swarm import peer_of

FIRST, SECOND = peer_of(1), peer_of(2)
ROUTE = (
    Hop(FIRST, Parts(True, 0, 2, False), "float32"),
    Hop(SECOND, Parts(False, 2, 4, True), "float32"),
)


def test_reports_of_quiet_neighbours_are_bounded() -> None:
    """However often a stage reports, and whichever peer it names."""
    run = GenerationRun(bytes(16), ROUTE, [1, 2, 3], 8, now=0.0)
    for number in range(100):
        run.take_quiet(FIRST, (peer_of(number), FIRST, SECOND)[number % 3], quiet=True)
    assert run.missed == {SECOND}
    assert run.pending == 0
    run.take_quiet(FIRST, SECOND, quiet=False)
    assert not run.missed
