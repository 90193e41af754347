"""`shoal usage`: what nodes used and provided, and what of it was checked."""

from typing import Any

import pytest

from shoal.cli.main import invoke

OWN, ONE, TWO = ("12D3KooW" + letter * 44 for letter in "abc")


def row(client: str | None, provider: str, tokens: int) -> dict[str, Any]:
    return {
        "client": client, "provider": provider, "root": "cd" * 32, "model": "tiny",
        "requests": 1, "tokens_in": tokens, "tokens_out": tokens, "busy_s": 2.5,
    }  # fmt: skip


def test_what_was_checked_is_a_column(replaced: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "usage": [row(OWN, ONE, 30), row(TWO, ONE, 20), row(ONE, OWN, 10), row(OWN, TWO, 5)],
        "more": 0,
        "own": OWN,
        "checked": [
            {"provider": ONE, "seconds": 90.0, "lied": False},
            {"provider": OWN, "seconds": 0.0, "lied": False},
            {"provider": TWO, "seconds": 0.0, "lied": True},
        ],
    }
    replaced(lambda op, on_event, fields: answer)
    assert invoke(["usage"]) == 0
    used, provided = capsys.readouterr().out.split("provided")
    assert "CHECKED" not in used and "CHECKED" in provided
    cells = [line.split() for line in provided.splitlines() if line[:4] in ("12D3", "this")]
    assert [line[-1] for line in cells] == ["min", "-", "lied"], provided
    assert cells[0][2:4] == ["50", "50"], "sums of all that it provided"
