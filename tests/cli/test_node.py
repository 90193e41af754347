"""Ways to give `shoal join` its code without showing it in the process list."""

import io
import sys
from pathlib import Path

import pytest

from shoal.cli.main import invoke

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


def test_a_terminal_is_asked(
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
def test_no_code_is_a_mistake_with_a_hint(
    came: str, joined: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(came))
    assert invoke(["join"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: expected an invitation code")
    assert hint.startswith("hint: ") and not joined


def test_no_more_is_read_than_a_code_has(
    joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("A" * 10_000_000))
    assert invoke(["join"]) == 0
    assert len(joined[0]) == 1024
