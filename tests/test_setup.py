"""`.ci/progress`, which shows how far pip is in `make setup`."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

PROGRESS = Path(__file__).parents[1] / ".ci" / "progress"
PIP = """\
import sys, time
print("Collecting trio", flush=True)
print("Collecting click", flush=True)
print("Installing collected packages: trio, click", flush=True)
time.sleep(float(sys.argv[1]))
print("a reason", file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loader = SourceFileLoader("progress", str(PROGRESS))
    spec = spec_from_loader("progress", loader)
    assert spec is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_a_silent_pip_gets_lines_about_its_packages(
    progress: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    assert progress.run("1 of 3: tools", [sys.executable, "-c", PIP, "0", "0"]) == 0
    first, *lines, last = capsys.readouterr().err.splitlines()
    assert first == "1 of 3: tools …" and last.startswith("1 of 3: tools: done after ")
    assert any(line.strip().startswith("2 packages, ") for line in lines), lines
    assert lines[-1].endswith("installing them")


def test_the_reason_of_a_failure_is_shown(
    progress: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.run("2 of 3: torch", [sys.executable, "-c", PIP, "0", "3"]) == 3
    *_, reason, last = capsys.readouterr().err.splitlines()
    assert reason == "a reason" and last.startswith("2 of 3: torch: failed after ")
