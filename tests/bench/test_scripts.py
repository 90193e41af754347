"""Tests that every benchmark still runs after a change of what it measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import records

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = records.scripts()
QUICK = (
    "browser_channel",
    "engine_scheduler",
    "engine_tiny",
    "lane",
    "netsim_light",
    "netsim_packets",
    "netsim_population",
    "netsim_punch",
    "netsim_timers",
    "placement",
    "placement_holes",
    "relay_circuit",
    "routing",
    "state_disk",
    "state_kill",
    "state_views",
)
"""Scripts of which a short run takes seconds, and needs no program of others and no root."""
# In one process, because most scripts take a second to import torch or numpy.
HELP = """
import contextlib, importlib, io, sys
path = ["bench", *sys.path]
for name in sys.argv[1:]:
    # A script must find what it imports without the help of those before it.
    sys.path[:] = path
    for each in [each for each in sys.modules if each.split(".")[0] == "tests"]:
        del sys.modules[each]
    script, text = importlib.import_module(name), io.StringIO()
    sys.argv = [f"bench/{name}.py", "--help"]
    try:
        with contextlib.redirect_stdout(text):
            script.main()
    except SystemExit as end:
        assert not end.code, f"{name}: exit code {end.code}"
    assert "--quick" in text.getvalue(), f"{name}: no option --quick"
"""


@pytest.mark.ci
def test_every_script_has_a_short_run() -> None:
    names = [script.stem for script in SCRIPTS]
    command = [sys.executable, "-P", "-c", HELP, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("name", QUICK)
def test_a_short_run_measures(name: str) -> None:
    """The marks are for quiet machines and full runs, so a run may miss them here."""
    script = ROOT / "bench" / f"{name}.py"
    command = [sys.executable, str(script), "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode in (0, 1) and lines, done.stderr
    result = json.loads(lines[-1])
    assert result["name"] == name and {"value", "goal", "ok"} <= result.keys()
    counted = records.default_seeds(script) is None or "seeds" in result
    assert counted, "a full run could not be recorded without its number of seeds"
