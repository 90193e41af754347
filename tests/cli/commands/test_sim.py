"""`shoal sim`: every command of docs/netsim.md, run folders, sweeps, and all wrong arguments."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.cli.errors import CANNOT_SIMULATE, FAILED, OK, USAGE
from shoal.cli.main import invoke
from shoal.cli.simulator import words
from shoal.cli.simulator.display import RunTime
from shoal.netsim.errors import RunFailed
from shoal.netsim.netns.namespaces import available
from shoal.netsim.runs.execute import TraceFile
from shoal.netsim.runs.processes import on_this_machine
from shoal.netsim.runs.summary import summarise
from shoal.netsim.runs.sweepfile import failed_line
from shoal.netsim.scenario.format.parse import parse

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "netsim.md").read_text()
COMMANDS = re.findall(r"^\$ shoal (.+)$", GUIDE, re.MULTILINE)


def script(path: Path) -> Any:
    """Import a file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ECHO = """\
[sim]
name = "echo"
duration = "3s"
seeds = "1..4"

[[host]]
name = "h"
count = 2
program = "udp-echo"

[[expect]]
metric = "echo.answered_rate"
op = ">="
value = 0.5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to run in, with the examples and a scenario of our own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "echo.toml").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.ci
def test_every_command_of_the_guide(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.netsim.report.plots.available", lambda: False)  # saves 1 s each
    monkeypatch.setenv("COLUMNS", "100")
    outputs = script(ROOT / "docs" / "outputs.py")
    shown = {block["command"]: block for block in outputs.BLOCK.finditer(GUIDE)}
    assert len(COMMANDS) >= 8 and shown and shown.keys() <= set(COMMANDS)
    for command in COMMANDS:
        wanted = FAILED if " diff " in command else OK
        code = invoke(shlex.split(command))
        out, err = capsys.readouterr()
        assert code == wanted, f"`shoal {command}`: {out}{err}"
        assert "error:" not in err
        if command in shown:
            new = outputs.shown(out, shown[command]["lines"])
            told = "run `python docs/outputs.py`"
            assert outputs.settled(new) == outputs.settled(shown[command]["output"]), told
    assert (here / "runs" / "partition-1" / "report.html").exists()


def test_the_python_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.+?)```", GUIDE, re.DOTALL)[0]
    exec(code, {})  # noqa: S102  what the guide shows is what is tested
    assert "they know each other after" in capsys.readouterr().out


def run(*args: str, code: int = OK) -> None:
    assert invoke(["sim", *args]) == code


def test_a_run_folder_and_its_replay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("run", "echo.toml", "--seed", "3", "--out", "out", "--trace", "--json", "--no-report")
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((here / "out" / "run.json").read_text())
    assert printed["digest"] == kept["digest"] and kept["seed"] == 3
    assert kept["versions"]["shoal"] and kept["series"]["at"]
    assert (here / "out" / "trace.msgpack").stat().st_size > 100
    assert (here / "out" / "scenario.toml").read_text() == ECHO
    assert not (here / "out" / "report.html").exists()
    run("replay", "out", "--json")
    assert json.loads(capsys.readouterr().out)["same"] is True
    run("report", "out")
    assert "</html>" in (here / "out" / "report.html").read_text()


def test_a_replay_that_differs_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("run", "echo.toml", "--out", "out", "--no-report")
    data = json.loads((here / "out" / "run.json").read_text())
    data["digest"] = "0" * 32
    data["versions"]["trio"] = "0.1"
    (here / "out" / "run.json").write_text(json.dumps(data))
    capsys.readouterr()
    run("replay", "out", code=FAILED)
    out = capsys.readouterr().out
    assert "digests differ" in out and "trio was 0.1 then" in out


def test_seeds_of_the_file_and_of_the_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sweep", "echo.toml", "-j", "1", "--json")
    assert json.loads(capsys.readouterr().out)["seeds"] == 4
    run("sweep", "echo.toml", "--seeds", "2..6", "-j", "1", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out)["seeds"] == 5
    assert "3 of 5 seeds are already done" in err
    lines = (here / "runs" / "echo-sweep" / "sweep.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines[1:]) == [1, 2, 3, 4, 5, 6]


def test_sweep_gives_the_figures_of_single_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sweep", "echo.toml", "--seeds", "4", "-j", "1")
    line = json.loads((here / "runs/echo-sweep/sweep.jsonl").read_text().splitlines()[1])
    capsys.readouterr()
    run("run", "echo.toml", "--seed", "4", "--json", "--no-report")
    assert json.loads(capsys.readouterr().out)["digest"] == line["digest"]


def test_failed_expectation_sets_the_exit_code(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.toml").write_text(ECHO.replace(">=", "<"))
    run("run", "bad.toml", "--no-report", code=FAILED)
    assert "failed  echo.answered_rate < 50 %" in capsys.readouterr().out
    run("sweep", "bad.toml", "--seeds", "5", "-j", "1", code=FAILED)
    out, err = capsys.readouterr()
    assert "0 of 1 seeds met every expectation; failed: 5" in out
    line = 1 + ECHO.splitlines().index("[[expect]]")
    assert f"failed  echo.answered_rate < 50 % (line {line}): seed 5; seed 5 has 100 %" in out
    assert "`shoal sim run bad.toml --seed 5` repeats the first" in err


def test_a_failed_sweep_names_each_expectation_and_its_seeds(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = '[[expect]]\nmetric = "echo.sent"\nop = "<"\nvalue = 0\n'
    (here / "bad.toml").write_text(ECHO + more)
    run("sweep", "bad.toml", "--seeds", "1..3", "-j", "1", code=FAILED)
    out = capsys.readouterr().out
    assert "failed  echo.sent < 0 (line 15): seeds 1 2 3; seed 1 has" in out
    assert "failed  echo.answered_rate" not in out
    found = json.loads((here / "runs/echo-sweep/sweep.json").read_text())
    assert found["failed"] == [1, 2, 3] and found["ended"] == []
    assert [(item["line"], item["seeds"]) for item in found["unmet"]] == [(15, [1, 2, 3])]


def test_seed_that_ended_early_gives_the_reason(here: Path) -> None:
    lines = [failed_line(3, "failed: its process ended with 1")]
    text = words.summary(summarise(lines))
    assert "failed  seed 3: its process ended with 1" in text


def test_incomplete_line_is_run_again(here: Path) -> None:
    run("sweep", "echo.toml", "--seeds", "1..2", "-j", "1")
    file = here / "runs" / "echo-sweep" / "sweep.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-20])
    run("sweep", "echo.toml", "--seeds", "1..2", "-j", "1")
    assert {json.loads(line).get("seed") for line in file.read_text().splitlines()} == {None, 1, 2}


def test_dead_worker_gives_a_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    lines = list(on_this_machine(parse(ECHO), None, [1, 2], 2))
    assert {line["seed"] for line in lines} == {1, 2}
    assert all(not line["met"] and "process ended with 1" in line["ended"] for line in lines)


ARGUMENTS = [
    (["run", "none.toml"], CANNOT_SIMULATE, "no file `none.toml`"),
    (["run", "examples"], CANNOT_SIMULATE, "`examples` is a folder"),
    (["run", "wrong.toml"], CANNOT_SIMULATE, "wrong.toml:9: there is no program `udp-ecko`"),
    (["run", "bytes.toml"], CANNOT_SIMULATE, "bytes.toml:2: this is not UTF-8"),
    (["run", "echo.toml", "--hosts", "3"], CANNOT_SIMULATE, "no population to scale"),
    (["run", "echo.toml", "--seed", "-1"], USAGE, "-1"),
    (["run", "echo.toml", "--backend", "ns3"], USAGE, "ns3"),
    (["run", "echo.toml", "--out", "."], FAILED, "exists and is not a run folder"),
    (["run", "echo.toml", "--out", "echo.toml"], FAILED, "exists and is not a run folder"),
    (["sweep", "echo.toml", "--seeds", "5..1"], USAGE, "first seed"),
    (["sweep", "echo.toml", "-j", "0"], USAGE, "0"),
    (["sweep", "echo.toml", "-j", "1", "--ray", "auto"], USAGE, "`-j`"),
    (["replay", "examples"], FAILED, "not a run folder"),
    (["replay", "damaged"], FAILED, "damaged"),
    (["replay", "echo.toml"], FAILED, "is a file"),
    (["sweep", "echo.toml", "--out", "echo.toml"], FAILED, "`echo.toml` cannot be written"),
    (["run", "echo.toml", "--out", "echo.toml/x"], FAILED, "`echo.toml/x` cannot be written"),
    (["replay", "examples", "--until", "3"], USAGE, "units of a time"),
    (["diff", "examples", "examples"], FAILED, "no trace"),
    (["report", "examples"], FAILED, "not a run folder"),
    (["rnu"], USAGE, "no such command `rnu`"),
]


@pytest.mark.parametrize(("args", "code", "says"), ARGUMENTS, ids=lambda item: str(item)[:40])
def test_wrong_arguments(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, says: str
) -> None:
    (here / "wrong.toml").write_text(ECHO.replace("udp-echo", "udp-ecko"))
    (here / "bytes.toml").write_bytes(b"[sim]\nname = '\xff'")
    (here / "damaged").mkdir()
    (here / "damaged" / "run.json").write_text('{"name": 3}')
    run(*args, code=code)
    out, err = capsys.readouterr()
    assert not out
    assert says in err and err.startswith("error: ") and "\nhint: " in err


def test_ray_is_optional(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    run("sweep", "echo.toml", "--ray", "auto", code=CANNOT_SIMULATE)
    assert "pip install 'shoal[ray]'" in capsys.readouterr().err


def test_a_sweep_on_ray(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ray functions that we call are replaced in this process."""
    ray = fake_ray(monkeypatch)
    run("sweep", "echo.toml", "--ray", "auto", "--json")
    assert json.loads(capsys.readouterr().out)["seeds"] == 4
    assert ray.told == ["auto", "down"]


def fake_ray(monkeypatch: pytest.MonkeyPatch, **versions: str) -> Any:
    ray: Any = types.ModuleType("ray")
    ray.told, ray.dead = [], set()
    ray.exceptions = types.SimpleNamespace(RayError=KeyError)
    ray.init = lambda address, **_: ray.told.append(address)
    ray.put = json.dumps
    ray.remote = lambda function: types.SimpleNamespace(remote=lambda *args: (function, *args))
    ray.wait = lambda pending, num_returns: (pending[:num_returns], pending[num_returns:])

    def get(done: Any) -> Any:
        function, task, seed = done
        if seed in ray.dead:
            raise KeyError("the worker died")
        line = function(json.loads(task), seed)
        line["versions"] |= versions
        return line

    ray.get = get
    ray.shutdown = lambda: ray.told.append("down")
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_dead_cluster_node_gives_a_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ray(monkeypatch).dead.add(2)
    run("sweep", "echo.toml", "--ray", "auto", "--json", code=FAILED)
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"] == [2] and "the worker died" in err


def test_a_node_with_another_version_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = fake_ray(monkeypatch, trio="0.1")
    run("sweep", "echo.toml", "--ray", "auto", code=CANNOT_SIMULATE)
    assert "a node of the cluster has trio 0.1, and this machine" in capsys.readouterr().err
    assert ray.told[-1] == "down"
    kept = (here / "runs/echo-sweep/sweep.jsonl").read_text().splitlines()
    assert len(kept) == 1  # its line is not stored


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_missing_cluster_is_detected_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    ray = fake_ray(monkeypatch)
    run("sweep", "echo.toml", "--ray", address, code=CANNOT_SIMULATE)
    assert f"no Ray cluster answers at `{address}`" in capsys.readouterr().err
    assert ray.told == []


def test_strict_is_refused_on_a_cluster(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ray(monkeypatch)
    (here / "strict.toml").write_text(ECHO.replace("[[host]]", "strict = true\n\n[[host]]", 1))
    run("sweep", "strict.toml", "--ray", "auto", code=CANNOT_SIMULATE)
    assert "`strict`" in capsys.readouterr().err


PLACES = ECHO.replace("[[host]]", '[world]\nlatency = "planetlab:rtt.txt"\n\n[[host]]', 1)


def test_latency_file_is_copied_with_the_scenario(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "places.toml").write_text(PLACES)
    (here / "sub" / "rtt.txt").write_text("0 40\n40 0\n")
    run("run", "sub/places.toml", "--out", "out", "--no-report")
    run("sweep", "sub/places.toml", "--seeds", "1", "-j", "1")
    (here / "sub" / "rtt.txt").write_text("0 90\n90 0\n")
    run("replay", "out")  # with the file it ran with
    run("sweep", "sub/places.toml", "--seeds", "1", "-j", "1", code=FAILED)
    assert "its scenario, or a file of that scenario, differs" in capsys.readouterr().err


def test_missing_file_is_reported_with_the_scenario_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "places.toml").write_text(PLACES)
    run("run", "places.toml", code=CANNOT_SIMULATE)
    err = capsys.readouterr().err
    assert err.startswith("error: places.toml:7: there is no file `rtt.txt`\n")
    assert "hint: put it next to the scenario" in err


def test_file_of_a_scenario_must_be_in_its_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "places.toml").write_text(PLACES)
    (here / "rtt.txt").symlink_to("/etc/passwd")
    run("run", "places.toml", code=CANNOT_SIMULATE)
    assert "is outside the scenario's folder" in capsys.readouterr().err
    (here / "rtt.txt").unlink()
    (here / "rtt.txt").write_text("0 40\n40\n")
    run("run", "places.toml", code=CANNOT_SIMULATE)
    assert "places.toml:7: rtt.txt:2: 1 values, expected" in capsys.readouterr().err


def test_full_disk_ends_a_run_cleanly(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (here / "out").mkdir()
    (here / "out" / "scenario.toml").write_text(ECHO)
    trace = TraceFile(Path("/dev/full"))
    trace.write(b"x")
    with pytest.raises(RunFailed, match="cannot be written: no space left") as caught:
        trace.check()
    assert caught.value.hint == "free some space there"
    trace.close()


def test_folder_with_a_users_scenario_is_untouched(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "scenario.toml").write_text("# mine\n")
    run("run", "echo.toml", "--out", "mine", code=FAILED)
    assert (here / "mine" / "scenario.toml").read_text() == "# mine\n"


def test_pipes_are_refused_without_waiting(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(here / "pipe")
    (here / "large").write_bytes(b"#" * (2 << 20))
    for name, says in (("pipe", "not a regular file"), ("/dev/zero", "not a regular file"),
                       ("large", "larger than 1 MiB")):  # fmt: skip
        run("run", name, code=CANNOT_SIMULATE)
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", [{"metrics": None}, {"seed": "x"}, {"series": 3}, {"hosts_given": "a"},
               {"pairs": {"classes": ["a"], "cells": [], "what": ""}}],
)  # fmt: skip
def test_damaged_run_is_reported(
    here: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    run("run", "echo.toml", "--out", "out", "--no-report")
    data = json.loads((here / "out" / "run.json").read_text())
    (here / "out" / "run.json").write_text(json.dumps(data | change))
    run("report", "out", code=FAILED)
    assert "is damaged" in capsys.readouterr().err


def test_sweep_killed_at_its_start_starts_again(here: Path) -> None:
    run("sweep", "echo.toml", "--seeds", "1", "-j", "1")
    file = here / "runs" / "echo-sweep" / "sweep.jsonl"
    whole = file.read_text()
    for kept in ("", whole[:20]):
        file.write_text(kept)
        run("sweep", "echo.toml", "--seeds", "1", "-j", "1")
        assert len(file.read_text().splitlines()) == 2


def test_kernel_backend_without_root_gives_a_reason(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    available.cache_clear()
    daemons = ECHO.replace('program = "udp-echo"', "").split("[[expect]]")[0]
    (here / "daemons.toml").write_text(daemons)
    for args in (["run", "daemons.toml", "--backend", "netns"], ["calibrate", "--kernel"]):
        run(*args, code=CANNOT_SIMULATE)
        err = capsys.readouterr().err
        assert "needs root" in err and "hint: run it as root" in err
    available.cache_clear()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ECHO, "netns.toml:6: the kernel backend runs daemons, not `udp-echo`"),
        (ECHO.replace('program = "udp-echo"', 'clock = "1s"').split("[[expect]]")[0],
         "netns.toml:6: `clock`"),
        (ECHO.replace('program = "udp-echo"', "").split("[[expect]]")[0]
         + '[[step]]\nat = "1s"\naction = "sleep"\ntarget = "h1"',
         "netns.toml:11: the kernel backend has no step `sleep`"),
        (ECHO.replace('program = "udp-echo"', "").split("[[expect]]")[0]
         + '[[group]]\nname = "g"\nlink = "dsl"',
         "netns.toml:11: the kernel backend has no [[group]]"),
    ],
)  # fmt: skip
def test_limits_of_the_kernel_backend(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (here / "netns.toml").write_text(text)
    run("run", "netns.toml", "--backend", "netns", code=CANNOT_SIMULATE)
    assert says in capsys.readouterr().err


LONG = ECHO.replace('"3s"', '"10h"').replace('program = "udp-echo"',
    'program = "udp-echo"\nsettings = { every = "10ms" }')  # fmt: skip


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    """Yield a function that starts `shoal sim`; it and its children end with the test."""
    started: list[subprocess.Popen[str]] = []
    (here / "long.toml").write_text(LONG)

    def start(*args: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli.main", "sim", *args], cwd=here, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(path: Path, size: int) -> None:
    end = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_keeps_the_figures_so_far(here: Path, start: Start) -> None:
    process = start("run", "long.toml", "--out", "out", "--trace", "--no-report")
    wait_for(here / "out" / "trace.msgpack", 100_000)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    kept = json.loads((here / "out" / "run.json").read_text())
    assert kept["ended"] == "interrupted" and kept["virtual"] > 0 and kept["metrics"]["echo.sent"]
    process.communicate()


@pytest.mark.ci
def test_strict_scenario_restarts_the_process(here: Path) -> None:
    (here / "strict.toml").write_text(ECHO.replace("[[host]]", "strict = true\n\n[[host]]", 1))
    for command in ("run", "sweep"):
        process = subprocess.run(
            [sys.executable, "-m", "shoal.cli.main", "sim", command, "strict.toml", "--json"],
            cwd=here, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout)
    lines = (here / "runs" / "echo-sweep" / "sweep.jsonl").read_text().splitlines()[1:]
    first = next(line for line in map(json.loads, lines) if line["seed"] == 1)
    kept = json.loads((here / "runs" / "echo-1" / "run.json").read_text())
    assert first["digest"] == kept["digest"]


def test_killed_sweep_continues(
    here: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finished seeds are in the file, and the worker processes end with the sweep."""
    (here / "echo.toml").write_text(ECHO.replace('"1..4"', '"1..2000"'))
    process = start("sweep", "echo.toml", "-j", "1")
    file = here / "runs" / "echo-sweep" / "sweep.jsonl"
    wait_for(file, 3000)
    process.kill()
    process.communicate()
    done = len(file.read_text().splitlines()) - 2  # the last line may be incomplete
    run("sweep", "echo.toml", "--seeds", f"1..{done}", "-j", "1", "--json")
    out, err = capsys.readouterr()
    assert json.loads(out)["seeds"] == done
    assert f"{done} of {done} seeds are already done" in err


def workers(process: "subprocess.Popen[str]", count: int) -> list[psutil.Process]:
    """Wait until a sweep has started its processes. While trio is imported, ldconfig is another."""
    end = time.monotonic() + 60
    while True:
        found = list[psutil.Process]()
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):
                found += [child] if "shoal.netsim.runs.worker" in child.cmdline() else []
        if len(found) == count:
            return found
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_in_a_sweep_is_quiet(start: Start) -> None:
    """The worker processes share the terminal's session, but ignore Ctrl-C and end with it."""
    process = start("sweep", "long.toml", "-j", "2")
    found = workers(process, 2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "interrupted; the same command runs the seeds that are missing\n"
    psutil.wait_procs(found, timeout=10)
    assert not any(one.is_running() for one in found)


INTERRUPTED_IN_ANOTHER_THREAD = """\
import pathlib, signal, sys, threading, time
from shoal.netsim.runs.processes import on_this_machine
from shoal.netsim.scenario.format.parse import parse
mask = signal.pthread_sigmask
def interrupt():
    mask(signal.SIG_UNBLOCK, [signal.SIGINT])
    time.sleep(1)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
mask(signal.SIG_BLOCK, [signal.SIGINT])
threading.Thread(target=interrupt).start()
try:
    next(on_this_machine(parse(pathlib.Path("long.toml").read_text()), None, [1], 1))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_just_before_a_sweep_waits_is_noticed(here: Path) -> None:
    """Such a signal does not end the system call that waits, just like one that another thread
    receives."""
    (here / "long.toml").write_text(LONG)
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_ANOTHER_THREAD],
        cwd=here, timeout=20, check=False, process_group=0,
    )  # fmt: skip
    assert ended.returncode == 130


def test_a_killed_sweep_leaves_no_process(start: Start) -> None:
    process = start("sweep", "long.toml", "-j", "1")
    (found,) = workers(process, 1)
    while found.cpu_times().user < 0.6:  # it runs the seed
        assert found.is_running()
        time.sleep(0.02)
    process.kill()
    _, alive = psutil.wait_procs([found], timeout=15)
    process.communicate()
    assert not alive


def test_virtual_time_is_shown_on_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    shown = RunTime(60.0)
    with shown.showing():
        shown(1.0)
    assert capsys.readouterr().err == ""
    assert words.figures_of_time(60.0, 2.0) == "virtual 60.0 s, real 2.0 s, 30 times as fast"
