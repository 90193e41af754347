"""Output of `shoal find`."""

import json
from typing import Any

import pytest

from shoal.cli.commands.find import record_row, report, says, step_row
from shoal.cli.main import invoke
from shoal.node.control.messages.dht import RecordView, Searches, StepView
from shoal.node.control.messages.encoding import decode

from ..conftest import FIND


def plain(text: str) -> list[str]:
    """Return the lines without the spaces between columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_records_for_a_person() -> None:
    assert plain(report(decode(Searches, FIND), path=False)) == [
        "nodes that serve layers of tiny: 2 nodes asked, 12 ms",
        "KIND SAYS BY AGE TOLD BY",
        "shard layers 0:2 (float32), 7.5 tokens/s 12D3KooWNode 3 s 12D3KooWKeeper",
        "shard layers 2:6 (float32) 12D3KooWFar 1 min members",
    ]


def test_path_is_shown_on_request() -> None:
    text = report(decode(Searches, FIND), path=True)
    assert "key " + "cd" * 32 in text
    assert "12D3KooWDead 1 0 bits 0.0 ms - timeout" in plain(text)
    assert "12D3KooWDead" not in report(decode(Searches, FIND), path=False)


def test_no_records_found() -> None:
    (search, *_) = FIND["searches"]
    empty = {"searches": [{**search, "records": [], "path": search["path"][:1]}]}
    assert report(decode(Searches, empty), path=False) == (
        "nodes that serve layers of tiny: 1 node asked, 12 ms\nno records found"
    )


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("peer", {"addresses": ["/ip4/1.2.3.4/tcp/1", "b", "c"]}, "/ip4/1.2.3.4/tcp/1, b"),
        ("peer", {"addresses": []}, "no address"),
        ("blob", {"size": 3 << 20, "chunks": 3}, "all 3 chunks, 3.0 MiB"),
        ("blob", {"size": 9, "chunks": 9, "ranges": [0, 2, 2, 1]}, "3 of 9 chunks"),
        ("blob", {"size": 0, "chunks": 1, "ranges": []}, "some chunks"),
        ("name", {"name": "tiny", "root": "ab" * 32, "layers": 6},
         "tiny is abababababab, 6 layers"),
        ("kv", {"blocks": 5, "layers": [0, 4], "precision": "float32"},
         "5 blocks, layers 0:4 (float32)"),
        ("new", {}, "a record of a kind that this version does not know"),
    ],
)  # fmt: skip
def test_summary_of_each_kind_of_record(kind: str, body: dict[str, Any], words: str) -> None:
    assert (
        says(decode(RecordView, {**FIND["searches"][0]["records"][0], "kind": kind, "says": body}))
        == words
    )


def test_peer_text_is_escaped() -> None:
    (search, *_) = FIND["searches"]
    (step, *_) = search["path"]
    record = {**search["records"][0], "author": "\x1b[2J", "kind": "peer",
              "says": {"addresses": ["\x1b[2J"]}}  # fmt: skip
    row = [
        *record_row(decode(RecordView, record)),
        *step_row(decode(StepView, {**step, "answer": "\x1b[2J"})),
    ]
    assert not any("\x1b" in cell for cell in row)


def test_json_and_the_key_that_was_typed(
    fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def answer(request: dict[str, Any], _emit: Any) -> dict[str, Any]:
        asked.append(request["key"])
        return FIND

    with fake_daemon({"find": answer}):
        assert invoke(["find", "tiny", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == FIND
        assert invoke(["find", "tiny@ab", "--path"]) == 0
        assert "12D3KooWDead" in capsys.readouterr().out
    assert asked == ["tiny", "tiny@ab"]


def test_no_node_to_ask() -> None:
    (search, *_) = FIND["searches"]
    empty = {"searches": [{**search, "records": [], "path": []}]}
    assert "there is no other node to ask; `shoal doctor`" in report(
        decode(Searches, empty), path=False
    )
