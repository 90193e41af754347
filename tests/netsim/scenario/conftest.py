"""Short scenarios for the tests."""

from collections.abc import Callable

import pytest

from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.run import ScenarioRun

RunText = Callable[..., ScenarioRun]


@pytest.fixture
def run_text() -> RunText:
    """Return a function that runs a text under a `[sim]` of the given duration, and returns the
    run.
    """

    def run(
        text: str, *, duration: str = "10s", seed: int = 1, until: float | None = None
    ) -> ScenarioRun:
        head = f'[sim]\nname = "t"\nduration = "{duration}"\n'
        made = ScenarioRun(parse(head + text), seed, until=until)
        made.go()
        return made

    return run
