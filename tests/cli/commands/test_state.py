"""Output of `shoal state`."""

import json
from typing import Any

import pytest

from shoal.cli.commands import state
from shoal.cli.main import invoke
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.state import FeedState

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
FEED: dict[str, Any] = {
    "event": "feed", "author": OWN, "kind": "models", "part": 0, "epoch": 1_700_000_000_000,
    "entries": 2, "bytes": 2048, "hash": "ab" * 32, "forked": False,
}  # fmt: skip
FORKED = {**FEED, "author": OTHER, "kind": "shards", "part": 11, "forked": True, "entries": 0}
SAID = {
    "event": "said", "author": OTHER, "kind": "models", "part": 0, "epoch": 5, "seq": 1,
    "made": 1_700_000_001.0, "earlier": False, "key": "ti\x1bny",
    "value": {"root": "ab", "layers": 6},
}  # fmt: skip


class Daemon:
    """Replaces the control socket."""

    def __init__(self, events: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        self.events, self.answer = events, answer
        self.asked: dict[str, Any] = {}

    def converse(self, op: str, on_event: Any, asked: dict[str, Any]) -> Any:
        self.asked = {"op": op, **asked}
        for event in self.events:
            on_event(event)
        return self.answer


def shown(
    replaced: Any, capsys: pytest.CaptureFixture[str], daemon: Daemon, *args: str
) -> tuple[int, str]:
    replaced(daemon.converse)
    code = invoke(["state", *args])
    return code, capsys.readouterr().out


def test_parts_stored_by_a_small_node(replaced: Any, capsys: Any) -> None:
    answer = {"feeds": 0, "own": OWN, "members": 2, "unreadable": 0}
    keeps = {"member": [0], "shards": [3, 11]}
    _, out = shown(replaced, capsys, Daemon([], {**answer, "keeps": keeps}), "show")
    assert "this node stores only what it needs of other nodes: member, shards 3 b" in out
    assert "nothing is known" not in out
    _, out = shown(replaced, capsys, Daemon([FEED], {**answer, "keeps": keeps}), "show")
    assert "this node stores" in out.splitlines()[-1]
    alone = {"shards": [11]}
    told = Daemon([FEED], {**answer, "keeps": None, "alone": alone})
    _, out = shown(replaced, capsys, told, "show")
    assert out.splitlines()[-1] == "no linked node stores shards b"
    every = {"shards": list(range(16))}
    _, out = shown(replaced, capsys, Daemon([FEED], {**answer, "keeps": every}), "show")
    assert "of other nodes: shards (" in out
    _, out = shown(replaced, capsys, Daemon([FEED], {**answer, "keeps": None}), "show")
    assert "this node stores" not in out


def test_the_feeds(replaced: Any, capsys: Any) -> None:
    daemon = Daemon([FEED, FORKED], {"feeds": 2, "own": OWN, "members": 2, "unreadable": 0})
    code, out = shown(replaced, capsys, daemon, "show", "--kind", "models")
    assert code == 0
    assert daemon.asked["kind"] == "models" and "author" not in daemon.asked
    lines = out.splitlines()
    assert lines[1].startswith("12D3KooWaaaaaa (this node)  models") and "2.0 KiB" in lines[1]
    assert "shards b" in lines[2] and "forked, empty" in lines[2]
    code, out = shown(replaced, capsys, daemon, "show", "--json")
    assert [feed["author"] for feed in json.loads(out)["feeds"]] == [OWN, OTHER]
    _, out = shown(replaced, capsys, Daemon([], daemon.answer), "show")
    assert "nothing is known yet" in out
    _, out = shown(replaced, capsys, Daemon([], daemon.answer), "show", "--kind", "usage")
    assert out == "nothing of kind `usage` is known\n"


def test_facts(replaced: Any, capsys: Any) -> None:
    daemon = Daemon(
        [{**FEED, "facts": {"ti\x1bny": {"layers": 6}}}],
        {"feeds": 1, "own": OWN, "members": 1, "unreadable": 0},
    )
    _, out = shown(replaced, capsys, daemon, "show", "--author", "me")
    assert out.splitlines()[-1] == "models  ti\\x1bny  layers 6"


def test_log_is_sorted_by_time(replaced: Any, capsys: Any) -> None:
    later = {**SAID, "made": 1_700_000_009.0, "value": None}
    code, out = shown(replaced, capsys, Daemon([later, SAID], {"changes": 2}), "log", "tiny")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2
    assert "ti\\x1bny  root ab, layers 6" in lines[0] and lines[1].endswith("withdrawn")
    _, out = shown(replaced, capsys, Daemon([later, SAID], {"changes": 2}), "log", "--json")
    assert [each["seq"] for each in json.loads(out)] == [1, 1]
    _, out = shown(replaced, capsys, Daemon([], {"changes": 0}), "log", "nobody")
    assert out == "no recorded changes for this key\n"
    _, out = shown(replaced, capsys, Daemon([], {"changes": 0}), "log", "--kind", "usage")
    assert out == "nothing of kind `usage` is known\n"


def test_first_facts_of_a_feed_may_be_older(replaced: Any, capsys: Any) -> None:
    first = {**SAID, "seq": 0, "earlier": True}
    later = {**SAID, "made": 1_700_000_009.0}
    _, out = shown(replaced, capsys, Daemon([first, later], {"changes": 2}), "log")
    assert [" or earlier  " in line for line in out.splitlines()] == [True, False]
    _, out = shown(replaced, capsys, Daemon([first], {"changes": 1}), "log", "--json")
    assert json.loads(out)[0]["earlier"] is True


def test_a_key_can_be_copied(replaced: Any, capsys: Any) -> None:
    key = "ab" * 32 + "/0"
    said = Daemon([{**SAID, "kind": "shards", "key": key}], {"changes": 1})
    _, out = shown(replaced, capsys, said, "log")
    assert f"  {key}  " in out
    feed = Daemon(
        [{**FEED, "facts": {key: {"start": 0}}}],
        {"feeds": 1, "own": OWN, "members": 1, "unreadable": 0},
    )
    _, out = shown(replaced, capsys, feed, "show", "--author", "me")
    assert f"  {key}  start 0" in out


def test_clock_of_a_stranger(replaced: Any, capsys: Any) -> None:
    strange = {**SAID, "made": 2**62 / 1000}
    code, out = shown(replaced, capsys, Daemon([strange], {"changes": 1}), "log")
    assert code == 0 and out.startswith("at no time")


def test_verify(replaced: Any, capsys: Any) -> None:
    whole = {"feeds": 3, "entries": 1, "bytes": 100, "damaged": []}
    code, out = shown(replaced, capsys, Daemon([], whole), "verify")
    assert (code, out) == (0, "3 feeds intact: 1 entry, 100 B\n")
    bad = {**whole, "damaged": [{"author": OTHER, "kind": "jobs", "part": 0}]}
    code, out = shown(replaced, capsys, Daemon([], bad), "verify")
    assert code == 1
    assert out.splitlines()[1] == "damaged: jobs of 12D3KooWbbbbbb, fetched again"


def test_export_is_one_document(replaced: Any, capsys: Any) -> None:
    daemon = Daemon([{**FEED, "facts": {"é": {"layers": 6}}}], {"feeds": 1})
    code, out = shown(replaced, capsys, daemon, "export")
    assert code == 0
    assert json.loads(out)["feeds"][0]["facts"] == {"é": {"layers": 6}}
    assert state.feed_row(decode(FeedState, FEED), OTHER)[0] == "12D3KooWaaaaaa"
    code, line = shown(replaced, capsys, daemon, "export", "--json")
    assert (code, json.loads(line)) == (0, json.loads(out)) and line.count("\n") == 1
    assert line.isascii()
