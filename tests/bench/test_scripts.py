"""Tests that every benchmark still runs after a change of what it measures."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
BEGINNING_S = 10.0
"""Seconds of each other script: it builds its worlds, and begins to measure."""
LACKING = ("hint: name its Python", "hint: run it on a machine that has one")
"""Hints of scripts that need a program of others, or a graphics card."""
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


def stop(run: subprocess.Popen[bytes]) -> None:
    """Interrupt a script and its processes, so that they remove what they made; kill the rest."""
    for number, patience in ((signal.SIGINT, 20), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(run.pid, number)
        with suppress(subprocess.TimeoutExpired):
            run.wait(patience)


def flaw_at_the_beginning(script: Path, seconds: float = BEGINNING_S) -> str:
    """Return what is wrong with the first seconds of a short run, or nothing."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        with out.open("wb") as to, err.open("wb") as errors:
            run = subprocess.Popen(
                [sys.executable, str(script), "--quick"], cwd=ROOT, stdout=to, stderr=errors,
                env={**os.environ, "TMPDIR": folder}, start_new_session=True,
            )  # fmt: skip
        try:
            with suppress(subprocess.TimeoutExpired):
                run.wait(seconds)
            code, said = run.poll(), err.read_text()
        finally:
            stop(run)
        if "Traceback" in said or code not in (None, 0, 1):
            return f"{script.name}: exit code {code}: {said[-2000:]}"
        lines = out.read_text().splitlines()
        if code is None or (said.startswith("error: ") and any(hint in said for hint in LACKING)):
            return ""
        if not lines or "name" not in json.loads(lines[-1]):
            return f"{script.name}: no result: {said[-2000:]}"
    return ""


@pytest.mark.ci
def test_each_other_script_begins_to_measure() -> None:
    """A function that was renamed is noticed where a script first uses it."""
    others = [script for script in SCRIPTS if script.stem not in QUICK]
    with ThreadPoolExecutor(2) as pool:
        flaws = [flaw for flaw in pool.map(flaw_at_the_beginning, others) if flaw]
    assert not flaws, "\n".join(flaws)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("code", "flaw"),
    [
        ('print(\'{"name": "x"}\')', ""),
        ("import time; time.sleep(60)", ""),
        ("import nothing_of_this_name", "nothing_of_this_name"),
        ("print('{}')", "no result"),
        ("raise SystemExit(2)", "exit code 2"),
        ("raise SystemExit('error: it failed\\nhint: mend it')", "no result"),
        ("raise SystemExit('error: no peft\\nhint: name its Python with --peft')", ""),
        (
            "import subprocess, sys, time\n"
            "subprocess.run([sys.executable, '-c', 'renamed()'])\ntime.sleep(60)",
            "renamed",
        ),
    ],
)
def test_a_flaw_at_the_beginning_is_seen(code: str, flaw: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    found = flaw_at_the_beginning(script, 5.0)
    assert flaw in found and bool(flaw) == bool(found)
