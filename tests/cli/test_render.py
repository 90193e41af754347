"""Text of peers never reaches the terminal unescaped, whatever command shows it."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import render
from shoal.cli.main import invoke
from shoal.node.control.messages import generation
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.node import Status

from .conftest import ANSWER, DHT, DOCTOR, FIND, LINK, PEER, STATUS

# Sequences that recolour, move, retitle, paste, hide or reorder terminal text.
NASTY = [
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "a\rb", "a\nb", "a\x08b",
    "\x1bP$q\x1b\\", "\u202egnp.exe", "\u2066x\u2069", "\x00", "\x7f", "\u2028", "\ud800",
    "\u200bzero", "\ufeff", "\x1b]52;c;ZWNobw==\x07", "\x7f\x80\x9f", "\u061cx", "\u200fx\u200e",
    "\u2029", "\U000e0041\U000e007f", "x\ufe0f", "x\U000e0100", "x\u3164y", "\u2060", "\u206a",
    "e" + "\u0301" * 40,
]  # fmt: skip
HARMFUL = {*map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F)))} - {"\n", "\t"} | {
    *map(chr, (*range(0x2066, 0x2070), *range(0xE0000, 0xE0200), *range(0xD800, 0xE000))),
    *"\u061c\u200b\u200e\u200f\u2028\u2029\u2060\u3164\ufeff",
}


@pytest.mark.parametrize("text", NASTY)
def test_safe(text: str) -> None:
    shown = render.safe(text)
    assert shown.isprintable() and not HARMFUL & set(shown) and "\ufe0f" not in shown
    assert shown.encode()
    assert shown.count("\u0301") <= 4  # more would reach into the lines above


def test_safe_keeps_what_is_printable_and_cuts() -> None:
    assert render.safe("Grüße 漢字 🐟") == "Grüße 漢字 🐟"
    assert render.safe("x" * 64) == "x" * 64
    assert render.safe("x" * 65) == "x" * 63 + "…"
    assert len(render.safe("\x00" * 200)) == 64


@pytest.mark.parametrize("text", NASTY)
def test_safe_text(text: str) -> None:
    shown = render.safe_text(text)
    assert not HARMFUL & set(shown)


def test_safe_text_keeps_scripts_and_emoji() -> None:
    kept = "one\n\ttwo 👩\u200d👩\u200d👧 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    assert render.safe_text(kept) == kept


def poisoned(value: Any, text: str) -> Any:
    """Return a value of the same shape with every text replaced, but not the keys."""
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, text) for item in value]
    return text if isinstance(value, str) else value


def said(*events: dict[str, Any], **answer: Any) -> list[dict[str, Any]]:
    """Build a daemon's reply to one request: events, then the answer."""
    return [*events, answer]


MODEL = STATUS["models"][0]
FEED = {
    "event": "feed", "author": "x", "kind": "models", "part": 0, "epoch": 5, "entries": 2,
    "bytes": 2048, "hash": "x", "forked": False, "facts": {"x": {"x": "x"}, "y": "x"},
}  # fmt: skip
SAID = {
    "event": "said", "author": "x", "kind": "x", "part": 0, "epoch": 5, "seq": 1, "made": 1.0,
    "earlier": False, "key": "x", "value": {"x": "x"},
}  # fmt: skip
ITEM = {
    "job": "x", "author": "x", "kind": "x", "state": "done", "error": None, "message": "x",
    "model": "x", "abstract": "x", "claimant": "x", "attempt": 2, "step": 7, "came": None,
    "read": False, "made": None, "spec": None, "text": "x", "tokens": 3, "reason": "x",
    "claims": [{"claimant": "x", "attempt": 1, "step": 1, "done": False, "refused": False}],
}  # fmt: skip
USED = {
    "client": "x", "provider": "x", "root": "x", "model": "x", "requests": 2, "tokens_in": 10,
    "tokens_out": 20, "busy_s": 90.0,
}  # fmt: skip
VOUCHER = {"peer": "x", "source": "dht", "age_s": 1.0}
MEMBER = {"peer": "x", "role": "x", "by": "x", "since": 0.0, "founder": False, "live": True}
NAMED = {"kind": "name", "author": "x", "age_s": 3.0, "by": "x", "source": "x", "made": 1,
         "ttl_s": 60, "says": {"name": "x", "root": "x", "layers": 6, "size": 1}}  # fmt: skip
SHOWN: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    "status": (["status"], said(**STATUS)),
    "links": (["status", "--links"], said(**STATUS, links=[LINK], span_s=1.0)),
    "doctor": (["doctor"], said(**DOCTOR)),
    "peers": (["peers"], said(peers=[PEER])),
    "models": (["model", "list"], said(models=[MODEL])),
    "model": (["model", "show", "x"], said(**MODEL, config={"x": "x"}, others=[
        {"name": "x", "vouchers": [VOUCHER]}], providers=[
        {"peer": "x", "layers": "x", "dtype": "x"}])),
    "run": (["run", "m", "p"], said({"event": "text", "text": "x"}, **ANSWER)),
    "find": (["find", "x", "--path"], said(searches=[
        FIND["searches"][0] | {"records": [*FIND["searches"][0]["records"], NAMED]}])),
    "dht": (["dht"], said(**DHT)),
    "feeds": (["state", "show"], said(FEED, own="x", feeds=1, members=1, unreadable=0,
        keeps=None, alone=None)),
    "log": (["state", "log"], said(SAID, changes=1)),
    "verify": (["state", "verify"], said(feeds=2, entries=1, bytes=1, damaged=[])),
    "export": (["state", "export"], said(FEED, own="x", feeds=1)),
    "usage": (["usage"], said(usage=[USED], more=3, own="x", stores=True)),
    "jobs": (["job", "list"], said(jobs=[ITEM], more=5, own="x", totals={"done": 6},
        does_jobs=True)),
    "job": (["job", "show", "x"], said(**ITEM, own="x")),
    "result": (["job", "result", "x"], said(**ITEM)),
    "rm": (["model", "rm", "x", "--yes"], said(kind="x", root="x", names=["x"], shared=2, freed=1,
        fetched=False, copies=1, partial=1, linked=True, embedded=False, removed=True)),
    "group": (["group"], said(group="x", founder="x", own="x", key=3, key_known=True,
        members=[MEMBER], revoked=[{"peer": "x", "by": "x", "since": 1.0}],
        invitations=[{"ident": "x", "role": "x", "uses": 2, "expires": 1.0}])),
    "blobs": (["blob", "list"], said(blobs=[
        {"root": "x", "size": 1, "chunks": 1, "missing": 0, "added": 1.0, "own": True}])),
    "pull": (["model", "pull", "x"], said({"event": "resolved", "name": "x", "root": "x",
        "vouchers": [VOUCHER]}, name="x", root="x", layers=6, weight_bytes=1, size=1, local=True,
        fetched=1, peers=1, seconds=0.5, liars=["x"], vouchers=[VOUCHER])),
}  # fmt: skip
KEPT = {"event", "state", "kind", "source", "phase", "code"}  # fixed words of our own


def poisoned_all(value: Any, text: str) -> Any:
    """Replace every text that a peer may choose, including keys of facts."""
    if isinstance(value, dict):
        return {
            (key if key != "x" else text): item if key in KEPT else poisoned_all(item, text)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [poisoned_all(item, text) for item in value]
    return text if isinstance(value, str) else value


@pytest.mark.parametrize("name", SHOWN)
def test_every_command(name: str, replaced: Any, capfd: pytest.CaptureFixture[str]) -> None:
    line, told = SHOWN[name]
    for text in [*NASTY, "t\u0456ny"]:
        *events, answer = poisoned_all(told, text)

        def converse(
            _op: str, on_event: Any, _asked: Any, events: Any = events, answer: Any = answer
        ) -> Any:
            for event in events:
                on_event(event)
            return answer

        replaced(converse)
        assert invoke(line) == 0, name
        out, err = capfd.readouterr()
        for shown in (out, err):
            assert not HARMFUL & set(shown), ascii(shown)
        assert invoke([*line, "--json"]) == 0
        out, _ = capfd.readouterr()
        json.loads(out)
        assert out.isascii() and out.count("\n") == 1 and out.rstrip("\n").isprintable()


def test_missing_layers_are_not_described_in_the_list_of_models(
    replaced: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names nodes and sizes, and would fill a column of a dozen characters."""
    line, told = SHOWN["models"]
    for complete, noted in ((True, False), (None, False), (False, True)):
        models = [{**told[-1]["models"][0], "complete": complete, "missing": "layers 2:6 of `x`"}]
        replaced(lambda *_, models=models: {**told[-1], "models": models})
        assert invoke(line) == 0
        out = capsys.readouterr().out
        assert "layers 2:6" not in out
        assert ("incomplete: no node" in out and "`shoal model show NAME`" in out) == noted


FREE = {"run", "log", "export", "result", "pull", "feeds"}  # texts, and lines for programs


@pytest.mark.parametrize("name", sorted(SHOWN.keys() - FREE))
def test_every_table_fits_80_columns(
    name: str,
    replaced: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line, told = SHOWN[name]
    peer = "12D3KooW" + "a" * 44
    *_, answer = poisoned_all(told, peer)
    replaced(lambda *_: answer)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert invoke(line) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80, shown


SHOW_NAMES = ("models", "model", "find", "feeds", "log", "usage", "jobs", "job", "pull", "status")


@pytest.mark.parametrize("command", SHOW_NAMES)
def test_a_name_that_looks_like_another_says_so(
    command: str,
    replaced: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line, told = SHOWN[command]
    *events, answer = poisoned_all(told, "t\u0456ny")

    def converse(_op: str, on_event: Any, _asked: Any) -> Any:
        for event in events:
            on_event(event)
        return answer

    replaced(converse)
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke(line) == 0
    assert r't\u0456ny (looks like "tiny")' in capsys.readouterr().out


def test_an_export_is_readable_and_steers_nothing() -> None:
    facts = {"\x9b": "Grüße 漢字\u202e\x7f\U000e0041\ud800\n", "emoji": "🐟", "e": "\u0489" * 40}
    shown = render.as_readable_json(facts)
    assert json.loads(shown) == facts and shown.count("\u0489") <= 4
    assert "Grüße 漢字" in shown and "🐟" in shown and not HARMFUL & set(shown)
    assert render.as_json("\x7f\x9b") == r'"\u007f\u009b"'


def test_commands_write_json_with_one_function() -> None:
    """Other functions might leave characters unescaped, as `state export` once did."""
    free = {"render.py", "client.py", "swarm.py"}  # write to a socket or a file
    folder = Path(render.__file__).parent
    found = {
        path.name
        for path in folder.rglob("*.py")
        if "json.dumps" in path.read_text() and path.stem != "sim"
    }
    assert found <= free


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
    from shoal.cli.commands.status import rate

    assert [rate(n) for n in (None, 0, 999, 1000, 1.5e6, 999_999, 2e9)] == [
        "-", "0 B/s", "999 B/s", "1.0 kB/s", "1.5 MB/s", "1.0 MB/s", "2.0 GB/s",
    ]  # fmt: skip


def test_status_shows_conditions() -> None:
    from shoal.cli.commands.status import status_rows

    rows = dict(status_rows(decode(Status, STATUS)))
    assert rows["health"] == "torch is not installed (pip install torch)"
    assert rows["serving"] == "tiny layers 0:2 (float32), room for 100 tokens"
    assert dict(status_rows(decode(Status, {**STATUS, "health": []})))["health"] == "ok"
    more = {**STATUS["serving"]["shard"], "layers": "2:4", "kv_tokens_free": 80}
    divided = {**STATUS["serving"], "further": [more]}
    rows = dict(status_rows(decode(Status, {**STATUS, "serving": divided})))
    assert rows["serving"] == (
        "tiny layers 0:2 (float32), 2:4 on another device, room for 80 tokens"
    )


@pytest.mark.parametrize(("columns", "stacked"), [(25, True), (26, False)])
def test_cells_are_stacked_if_ids_are_too_wide(
    columns: int, stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = render.table(("A", "LONG"), [("x" * 20, "y"), ("z", "w")])
    below = f"A     {'x' * 20}\nLONG  y\n\nA     z\nLONG  w"
    assert (shown == below) == stacked


def test_the_widest_column_is_wrapped_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = render.table(("ID", "WHY"), [("ab" * 8, "nothing of it was ever cut"), ("cd", "short")])
    assert shown.splitlines() == [
        "ID                WHY",
        "abababababababab  nothing of it was ever",
        "                  cut",
        "cd                short",
    ]
    assert render.fields([("why", "nothing of it is cut at the edge")]).splitlines() == [
        "why  nothing of it is cut at the edge"
    ]


def test_output_without_a_terminal_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = render.table(("A", "B"), [("word " * 40, "other " * 40)])
    assert 70 < max(map(len, shown.splitlines())) <= 80
    assert max(map(len, render.fields([("name", "word " * 60)]).splitlines())) <= 80


def test_ids_are_cut_to_a_beginning() -> None:
    peer, other = "12D3KooWAbCdEf" + "x" * 38, "12D3KooWAbCdEf" + "y" * 38
    assert render.short(peer) == "12D3KooWAbCdEf"
    assert render.short(peer, [peer, other]) == "12D3KooWAbCdEfx"
    assert render.short("ab" * 32) == "ab" * 6
    assert render.short("\x1b[31m") == r"\x1b[31m"


def test_an_answer_that_waits_says_so_beside_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    waits = generation.LayersAwaited(("2:5", "\x1b5:6"), 600.0)
    with render.Streamed() as text:
        text.take(generation.TextPiece("Once "))
        text.take(waits)
        text.take(generation.TextPiece("more"))
    with render.Streamed(silent=True) as silent:
        silent.take(waits)
    out, err = capsys.readouterr()
    assert out == "Once more\n", "the text as a pipe gets it is unchanged"
    assert err.startswith("\nthe nodes with layers 2:5 and ") and "600 s at most" in err
    assert "\x1b" not in err and err.count("lost") == 1
