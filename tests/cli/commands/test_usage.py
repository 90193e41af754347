"""Output of `shoal usage`."""

import json
from typing import Any

import pytest

from shoal.cli.main import invoke

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
ROOT = "ab" * 32
ROWS: list[dict[str, Any]] = [
    {"client": OWN, "provider": OTHER, "root": ROOT, "model": "ti\x1bny",
     "requests": 2, "tokens_in": 10, "tokens_out": 20, "busy_s": 90.0},
    {"client": OWN, "provider": OWN, "root": ROOT, "model": "ti\x1bny",
     "requests": 1, "tokens_in": 1, "tokens_out": 2, "busy_s": 0.25},
    {"client": OTHER, "provider": OTHER, "root": "cd" * 32, "model": None,
     "requests": 1, "tokens_in": 500, "tokens_out": 0, "busy_s": 1.0},
    {"client": None, "provider": OTHER, "root": None, "model": None,
     "requests": 9, "tokens_in": 1, "tokens_out": 1, "busy_s": 1.0},
]  # fmt: skip


def shown(
    replaced: Any,
    capsys: pytest.CaptureFixture[str],
    rows: Any,
    *args: str,
    kept: bool = True,
) -> str:
    answer = {"usage": rows, "more": 3 if rows else 0, "own": OWN, "kept": kept}
    replaced(lambda *_: answer)
    assert invoke(["usage", *args]) == 0
    return capsys.readouterr().out


def test_used_and_provided(replaced: Any, capsys: Any) -> None:
    out = shown(replaced, capsys, ROWS)
    had, gave = out.split("\n\n")
    assert "used, as reported by" in had and "provided, as reported by" in gave
    first, second, third = had.splitlines()[2:]
    assert first.split() == ["12D3KooWbbbbbb", "cdcdcdcdcdcd", "1", "500", "0", "1.0", "s"]
    assert second.startswith("this node") and "ti\\x1bny" in second
    assert second.split()[-5:] == ["3", "11", "22", "1", "min"]
    assert third.startswith("others together")
    assert gave.splitlines()[2].split() == ["12D3KooWbbbbbb", "12", "511", "21", "1", "min"]
    assert gave.splitlines()[-1] == "and 3 more sums"


def test_nothing_yet(replaced: Any, capsys: Any) -> None:
    out = shown(replaced, capsys, [])
    assert "no node has reported" in out and "every 10 minutes" in out


def test_usage_of_a_node_that_does_not_store_reports(replaced: Any, capsys: Any) -> None:
    for rows in ([], ROWS):
        out = shown(replaced, capsys, rows, kept=False)
        assert "does not store the usage reports" in out.splitlines()[-1]
        assert "no node has reported" not in out


def test_json(replaced: Any, capsys: Any) -> None:
    assert json.loads(shown(replaced, capsys, ROWS, "--json"))["usage"] == ROWS
