"""docs/netsim.md has the figures of the recorded run, and its scenario is valid."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.run import ScenarioRun

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "netsim.md").read_text()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("netsim_capacity")


def test_the_guide_has_the_recorded_table(bench: Any) -> None:
    shown = re.search(r"<!-- capacity: .*? -->\n(.*?)\n<!-- end of", GUIDE, re.DOTALL)
    record = json.loads(bench.RECORD.read_text())
    assert shown is not None and shown[1] == "\n".join(bench.table(record)), (
        "run: python bench/netsim_capacity.py --table"
    )


def test_the_scenario_of_the_guide_runs() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    assert len(ScenarioRun(parse(text), 1).topology.groups["unlucky"]) == 6
