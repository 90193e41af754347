"""Nothing a peer says reaches the terminal unescaped, whatever command shows it."""

import json
from typing import Any

import pytest

from shoal.cli import render
from shoal.cli.main import invoke

from .conftest import STATUS

# Sequences that would recolour, move, retitle, paste, hide or reorder what a terminal shows.
NASTY = [
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "a\rb", "a\nb", "a\x08b",
    "\x1bP$q\x1b\\", "\u202egnp.exe", "\u2066x\u2069", "\x00", "\x7f", "\u2028", "\ud800",
    "\u200bzero", "\ufeff", "\x1b]52;c;ZWNobw==\x07",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_safe(text: str) -> None:
    shown = render.safe(text)
    assert shown.isprintable()
    assert shown.encode()


def test_safe_keeps_what_is_printable_and_cuts() -> None:
    assert render.safe("Grüße 漢字 🐟") == "Grüße 漢字 🐟"
    assert render.safe("x" * 64) == "x" * 64
    assert render.safe("x" * 65) == "x" * 63 + "…"
    assert len(render.safe("\x00" * 200)) == 64


@pytest.mark.parametrize("text", NASTY)
def test_safe_text(text: str) -> None:
    shown = render.safe_text(text)
    assert not set("\x1b\x9b\x00\x07\x08\r\x7f\u202e\u2066\u2028\ud800") & set(shown)


def test_safe_text_keeps_scripts_and_emoji() -> None:
    kept = "one\n\ttwo 👩\u200d👩\u200d👧 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    assert render.safe_text(kept) == kept


def poisoned(value: Any, text: str) -> Any:
    """The same shape with every text replaced, keys kept."""
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, text) for item in value]
    return text if isinstance(value, str) else value


SHOWN = [
    ["status"],
    ["status", "--links"],
    ["doctor"],
    ["peers"],
    ["model", "list"],
    ["model", "show", "x"],
    ["run", "m", "p"],
]


@pytest.mark.parametrize("line", SHOWN, ids=lambda line: " ".join(line))
@pytest.mark.parametrize("text", NASTY[:4] + NASTY[8:9] + NASTY[12:13])
def test_every_command(
    line: list[str], text: str, fake_daemon: Any, answers: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    holders = [{"peer": text, "layers": text, "dtype": text}]
    shown = {**answers["models"]["models"][0], "config": {text: text}, "holders": holders}
    answers = poisoned({**answers, "model_show": shown}, text)
    answers["run"] = [{"event": "text", "text": text}, answers["run"][-1]]
    with fake_daemon(answers):
        assert invoke(line) == 0
        out, err = capfd.readouterr()
        assert err == ""
        assert all(c.isprintable() or c in "\n\t" for c in out), ascii(out)
        assert invoke([*line, "--json"]) == 0
        out, _ = capfd.readouterr()
        json.loads(out)
        assert out.isascii() and out.count("\n") == 1 and out.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", NASTY)
def test_error_messages(text: str, fake_daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.node.errors import ControlError

    with fake_daemon({"status": ControlError("failed", f"peer said {text}", hint=text + "x")}):
        assert invoke(["status"]) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2
    assert all(c.isprintable() or c == "\n" for c in err)


def test_table() -> None:
    assert render.table(("A", "LONG"), [("xx", "y")]) == "A   LONG\nxx  y"


def test_fields_leave_repeated_names_blank() -> None:
    assert render.fields([("a", "1"), ("bb", "2"), ("bb", "3")]) == "a   1\nbb  2\n    3"


def test_sizes_and_durations() -> None:
    assert [render.size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB",
    ]  # fmt: skip
    assert [render.duration(s) for s in (3.9, 75, 7500, 200000)] == [
        "3 s", "1 min", "2 h 5 min", "2 d 7 h",
    ]  # fmt: skip


def test_rates() -> None:
    from shoal.cli.status import rate

    assert [rate(n) for n in (None, 0, 999, 1000, 1.5e6, 999_999, 2e9)] == [
        "-", "0 B/s", "999 B/s", "1.0 kB/s", "1.5 MB/s", "1.0 MB/s", "2.0 GB/s",
    ]  # fmt: skip


def test_status_tells_conditions() -> None:
    from shoal.cli.status import status_rows

    rows = dict(status_rows(STATUS))
    assert rows["health"] == "torch is not installed (pip install torch)"
    assert rows["serving"] == "tiny layers 0:2 (float32)"
    assert dict(status_rows({**STATUS, "health": []}))["health"] == "ok"


@pytest.mark.parametrize(("columns", "stacked"), [(12, True), (13, False), (0, False)])
def test_a_terminal_that_would_break_each_line_twice_gets_the_cells_below_each_other(
    columns: int, stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: columns > 0)
    monkeypatch.setenv("COLUMNS", str(columns or 5))
    shown = render.table(("A", "LONG"), [("x" * 20, "y"), ("z", "w")])
    below = f"A     {'x' * 20}\nLONG  y\n\nA     z\nLONG  w"
    assert (shown == below) == stacked
