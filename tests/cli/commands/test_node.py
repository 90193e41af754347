"""Ways to give `shoal join` its code without showing it in the process list."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import invoke
from shoal.node.settings.config import DataFolder
from shoal.transport.identity import IDENTITY_FILE

Captured = pytest.CaptureFixture[str]
CODE = "2H03G-8K0ZV-00000"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the codes with which the daemon would start."""
    codes: list[str] = []
    monkeypatch.setattr("shoal.node.invite.decode", codes.append)
    monkeypatch.setattr("shoal.cli.foreground.run_foreground", lambda *_: None)
    return codes


def test_a_code_on_the_command_line(joined: list[str]) -> None:
    assert invoke(["join", CODE]) == 0
    assert joined == [CODE]


def test_a_code_from_standard_input(joined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"  {CODE}\n"))
    assert invoke(["join"]) == 0
    assert joined == [CODE]


def test_code_is_prompted_for_on_a_terminal(
    joined: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{CODE}\n"))
    assert invoke(["join"]) == 0
    assert joined == [CODE]
    assert "Invitation code" in "".join(capsys.readouterr())


def test_a_code_from_a_file(joined: list[str], tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_text(f"{CODE}\n")
    assert invoke(["join", "--file", str(path)]) == 0
    assert joined == [CODE]


def test_a_dash_is_standard_input(joined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{CODE}\n".encode())))
    assert invoke(["join", "--file", "-"]) == 0
    assert joined == [CODE]


@pytest.mark.parametrize("came", ["", " \n"])
def test_missing_code_is_a_usage_error(
    came: str, joined: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(came))
    assert invoke(["join"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: expected an invitation code")
    assert hint.startswith("hint: ") and not joined


def test_input_is_bounded(joined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("A" * 10_000_000))
    assert invoke(["join"]) == 0
    assert len(joined[0]) == 1024


def test_private_asks_before_a_used_folder_leaves_its_swarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("shoal.cli.foreground.run_foreground", lambda *args: started.append(args))
    command = ["node", "--private", "--data", str(tmp_path)]
    assert invoke(command) == 0 and len(started) == 1, "an empty folder has nothing to lose"
    (tmp_path / IDENTITY_FILE).touch()
    assert invoke(command) == 1 and len(started) == 1
    said = capsys.readouterr().err
    assert "takes it out of that swarm for good" in said and "--yes" in said
    assert "shoal node --private --data DIR" in said
    assert invoke([*command, "--yes"]) == 0 and len(started) == 2
    assert "for good" in capsys.readouterr().err
    DataFolder(tmp_path).group.touch()
    assert invoke(command) == 0 and len(started) == 3, "it is private already"
    assert invoke(["node", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
