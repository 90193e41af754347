"""No run is lost: only the same run, or `--force`, replaces a folder; the same for sweeps."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.errors import FAILED, OK
from shoal.cli.main import invoke
from shoal.cli.simulator.display import RunTime

ECHO = """\
[sim]
name = "echo"
duration = "3s"

[[host]]
name = "h"
count = 2
program = "udp-echo"
"""
RUN = "runs/echo-1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "echo.toml").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sim(*args: str, code: int = OK) -> None:
    more = ["--no-report"] if args[0] == "run" else ["-j", "1"]
    assert invoke(["sim", *args, *more]) == code


def kept(folder: str = RUN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "run.json").read_text())
    return found


def files() -> set[str]:
    return {path.name for path in Path("runs").iterdir()}


def test_same_run_replaces_itself_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    sim("run", "echo.toml", "--trace")
    before = kept()
    capsys.readouterr()
    sim("run", "echo.toml")
    assert "replaced the run in `runs/echo-1`: it had the same inputs" in capsys.readouterr().err
    assert kept()["digest"] == before["digest"] and kept()["real"] != before["real"]
    assert Path(RUN, "trace.msgpack").exists()  # it has the same packets
    assert files() == {"echo-1"}


def test_changed_scenario_is_refused_with_commands_that_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sim("run", "echo.toml")
    before = kept()
    Path("echo.toml").write_text(ECHO.replace('"3s"', '"4s"'))
    sim("run", "echo.toml", code=FAILED)
    err = capsys.readouterr().err
    assert "error: `runs/echo-1` holds another run: its scenario differs" in err
    assert "hint: `--out runs/echo-1.2` keeps both, `--force` replaces it" in err
    assert kept() == before
    sim("run", "echo.toml", "--out", "runs/echo-1.2")
    assert (kept()["duration"], kept("runs/echo-1.2")["duration"]) == (3, 4)
    sim("run", "echo.toml", "--force")
    assert kept()["duration"] == 4
    assert Path(RUN, "scenario.toml").read_text() == Path("echo.toml").read_text()


def test_each_input_counts(capsys: pytest.CaptureFixture[str]) -> None:
    text = ECHO + '[world]\nhosts = 2\npopulation = "home-volunteers-2026"\nprogram = "idle"\n'
    text += 'latency = "planetlab:p.txt"\n'
    Path("p.txt").write_text("0 90\n90 0\n")
    Path("echo.toml").write_text(text)
    sim("run", "echo.toml", "--out", "r")
    changes = (
        (("--seed", "2"), "its seed is 1"),
        (("--hosts", "3"), "it ran without `--hosts`"),
    )
    for more, says in changes:
        sim("run", "echo.toml", "--out", "r", *more, code=FAILED)
        assert says in capsys.readouterr().err
    Path("p.txt").write_text("0 80\n80 0\n")
    sim("run", "echo.toml", "--out", "r", code=FAILED)
    assert "its `p.txt` differs" in capsys.readouterr().err


def test_same_inputs_with_other_packets_keep_both_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """This happens after a change of the code."""
    sim("run", "echo.toml")
    old = kept() | {"digest": "0" * 32}
    Path(RUN, "run.json").write_text(json.dumps(old))
    capsys.readouterr()
    sim("run", "echo.toml")
    out, err = capsys.readouterr()
    assert "but the packets differ" in err and "kept in runs/echo-1.2" in out
    assert kept() == old and kept("runs/echo-1.2")["digest"] != old["digest"]


def test_run_that_got_further_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim("run", "echo.toml")
    before = kept()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunTime, "__call__", lambda self, now: interrupt(now))
    assert invoke(["sim", "run", "echo.toml", "--no-report"]) != OK
    err = capsys.readouterr().err
    assert "keeps the earlier run, which got further" in err
    assert "ended early, at virtual" in err and "kept in" not in err
    assert kept() == before and files() == {"echo-1"}
    monkeypatch.undo()


def test_interrupted_run_is_replaced_with_its_trace() -> None:
    sim("run", "echo.toml", "--trace")
    cut = kept() | {"ended": "interrupted", "virtual": 1.0, "digest": "0" * 32}
    Path(RUN, "run.json").write_text(json.dumps(cut))
    sim("run", "echo.toml")
    assert kept()["ended"] == "done" and files() == {"echo-1"}
    assert not Path(RUN, "trace.msgpack").exists()


def test_a_killed_run_is_run_again() -> None:
    sim("run", "echo.toml")
    Path(RUN, "run.json").unlink()
    sim("run", f"{RUN}/scenario.toml")
    assert kept()["ended"] == "done"


def test_damaged_run_is_not_replaced_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    sim("run", "echo.toml")
    Path(RUN, "run.json").write_text("{}")
    sim("run", "echo.toml", code=FAILED)
    assert "is damaged" in capsys.readouterr().err
    sim("run", "echo.toml", "--force")
    assert kept()["ended"] == "done"


def test_a_real_kernel_s_run_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    sim("run", "echo.toml")
    Path(RUN, "run.json").write_text(json.dumps(kept() | {"backend": "netns"}))
    sim("run", "echo.toml", code=FAILED)
    assert "runs in a real kernel are not repeatable" in capsys.readouterr().err


def test_the_user_s_files_survive_force() -> None:
    sim("run", "echo.toml")
    Path(RUN, "notes.md").write_text("mine")
    Path("echo.toml").write_text(ECHO.replace('"3s"', '"4s"'))
    sim("run", "echo.toml", "--force")
    assert Path(RUN, "notes.md").read_text() == "mine"


def test_a_sweep_of_another_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sim("sweep", "echo.toml", "--seeds", "1")
    lines = Path("runs/echo-sweep/sweep.jsonl").read_text()
    Path("echo.toml").write_text(ECHO.replace('"3s"', '"4s"'))
    sim("sweep", "echo.toml", "--seeds", "1", code=FAILED)
    err = capsys.readouterr().err
    assert "holds another sweep: its scenario, or a file of that scenario, differs" in err
    assert "`--out runs/echo-sweep.2` keeps both, `--force` replaces it" in err
    assert Path("runs/echo-sweep/sweep.jsonl").read_text() == lines
    sim("sweep", "echo.toml", "--seeds", "1", "--force")
    head = json.loads(Path("runs/echo-sweep/sweep.jsonl").read_text().splitlines()[0])
    assert head != json.loads(lines.splitlines()[0])


def test_a_sweep_of_other_versions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sim("sweep", "echo.toml", "--seeds", "1")
    file = Path("runs/echo-sweep/sweep.jsonl")
    head, line = file.read_text().splitlines()
    older = json.loads(head)
    older["versions"]["trio"] = "0.1"
    file.write_text(f"{json.dumps(older)}\n{line}\n")
    sim("sweep", "echo.toml", "--seeds", "1", code=FAILED)
    assert "it ran with trio 0.1, here is" in capsys.readouterr().err
    shutil.rmtree("runs")
