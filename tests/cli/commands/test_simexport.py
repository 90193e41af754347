"""CSV files of runs and sweeps: every figure with its unit."""

import csv
import json
from pathlib import Path

import pytest

from shoal.cli.errors import FAILED, OK
from shoal.cli.main import invoke

ECHO = """\
[sim]
name = "echo"
duration = "3s"

[[link]]
id = "l"
loss = "5%"

[[host]]
name = "h"
count = 2
nat = "linux-drop"
program = "udp-echo"

[[host]]
name = "p"
link = "l"
program = "udp-echo"
settings = { every = "100ms" }
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo.toml").write_text(ECHO)
    monkeypatch.chdir(tmp_path)


def sim(*args: str, code: int = OK) -> None:
    assert invoke(["sim", *args]) == code


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    sim("run", "echo.toml", "--no-report")
    sim("export", "runs/echo-1")
    assert "written: runs/echo-1/metrics.csv" in capsys.readouterr().out
    kept = json.loads(Path("runs/echo-1/run.json").read_text())
    metrics = {row["metric"]: row for row in rows("runs/echo-1/metrics.csv")}
    assert float(metrics["rtt.p95"]["value"]) == kept["metrics"]["rtt"]["p95"]
    units = {name: metrics[name]["unit"] for name in ("rtt.p95", "packets.loss", "packets.sent")}
    assert units == {"rtt.p95": "s", "packets.loss": "share", "packets.sent": "count"}
    assert int(metrics["drops.lost"]["value"]) == kept["metrics"]["drops"]["lost"] > 0
    series = rows("runs/echo-1/series.csv")
    assert [float(row["at_s"]) for row in series] == kept["series"]["at"]
    assert [int(row["sent"]) for row in series] == kept["series"]["sent"]
    samples = [float(row["value"]) for row in rows("runs/echo-1/samples.csv")]
    assert samples == kept["samples"]["rtt"]
    hosts = rows("runs/echo-1/hosts.csv")
    assert [(row["host"], row["gateway"]) for row in hosts] == [
        ("h1", "linux-drop"), ("h2", "linux-drop"), ("p", "public"),
    ]  # fmt: skip
    assert int(hosts[2]["sent"]) > 0


def test_run_writes_csv_itself() -> None:
    sim("run", "echo.toml", "--no-report", "--csv")
    sim("run", "echo.toml", "--no-report", "--csv")  # writes to a hidden folder first
    names = {path.name for path in Path("runs/echo-1").iterdir()}
    assert {"metrics.csv", "series.csv", "samples.csv", "hosts.csv"} < names


def test_a_sweep_as_csv(capsys: pytest.CaptureFixture[str]) -> None:
    sim("sweep", "echo.toml", "--seeds", "2..3", "-j", "1")
    sim("export", "runs/echo-sweep")
    found = rows("runs/echo-sweep/sweep.csv")
    assert [(row["seed"], row["met"], row["ended"]) for row in found] == [
        ("2", "True", "done"), ("3", "True", "done"),
    ]  # fmt: skip
    assert all(float(row["rtt.p50"]) > 0 and row["digest"] for row in found)
    Path("runs/echo-sweep/sweep.jsonl").write_text("{}\n[]\n")
    sim("export", "runs/echo-sweep", code=FAILED)
    assert "is damaged" in capsys.readouterr().err


def test_only_a_run_can_be_exported(capsys: pytest.CaptureFixture[str]) -> None:
    sim("export", ".", code=FAILED)
    assert "is not a run folder" in capsys.readouterr().err
