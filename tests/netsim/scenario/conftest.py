"""Scenarios of the tests, short."""

from collections.abc import Callable

import pytest

from shoal.netsim.scenario.parse import parse
from shoal.netsim.scenario.run import Run

RunText = Callable[..., Run]


@pytest.fixture
def run_text() -> RunText:
    """`run_text("[[host]] …")` runs it under a `[sim]` of so many seconds; returns the run."""

    def run(text: str, *, duration: str = "10s", seed: int = 1, until: float | None = None) -> Run:
        head = f'[sim]\nname = "t"\nduration = "{duration}"\n'
        made = Run(parse(head + text), seed, until=until)
        made.go()
        return made

    return run
