"""Output of `shoal dht`."""

import json
from typing import Any

import pytest

from shoal.cli.commands.dht import SHOWN, bucket_row, own_row, report, rows
from shoal.cli.main import invoke
from shoal.dht.figures import BucketFigures, DhtFigures, OwnRecordFigures
from shoal.node.control.messages.encoding import decode

from ..conftest import DHT


def test_summary() -> None:
    assert rows(decode(DhtFigures, DHT)) == [
        ("mode", "fallback: this node is not publicly reachable"),
        ("network", "about 42 nodes that serve"),
        ("contacts", "21, 3 of them publicly reachable"),
        ("links", "5 only for look-ups"),
        ("stored", "12 records of other nodes, 6.0 KiB of 32.0 MiB"),
        ("refused", "requests and records of other nodes: 3 bad-signature, 1 expired"),
        ("disbelieved", "replies of other nodes: none"),
        ("own", "2 records, last announced 1 min ago: 2 keys, 31 messages, 0.2 s"),
    ]
    assert rows(decode(DhtFigures, {**DHT, "walk": None}))[-1] == (
        "own",
        "2 records, not announced yet",
    )


def test_the_tables() -> None:
    assert [bucket_row(decode(BucketFigures, each)) for each in DHT["buckets"]] == [
        ["0 bits", "20", "2", "4"],
        ["1 bit", "1", "1", "0"],
    ]
    assert [own_row(decode(OwnRecordFigures, each)) for each in DHT["own"]] == [
        ["peer", "12D3KooWNode", "20 nodes", "1 min ago", "in 50 min"],
        ["shard (withdrawn)", "0:2:float32", "1 node", "never", "in 0 s"],
    ]


def test_fully_withdrawn_record_is_not_announced_again() -> None:
    assert own_row(decode(OwnRecordFigures, {**DHT["own"][1], "due_s": None}))[-1] == "never"


def test_a_long_list_is_cut() -> None:
    many = [DHT["own"][0]] * (SHOWN + 5)
    text = report(decode(DhtFigures, {**DHT, "own": many, "buckets": []}))
    assert text.count("12D3KooWNode") == SHOWN
    assert text.endswith("and 5 more of its own records")
    assert "SHARED" not in text


def test_peer_text_is_escaped() -> None:
    assert "\x1b" not in report(
        decode(DhtFigures, {**DHT, "own": [{**DHT["own"][0], "about": "\x1b[2J"}]})
    )
    assert "\x1b" not in report(decode(DhtFigures, {**DHT, "disbelieved": {"\x1b[2J": 1}}))


def test_json(fake_daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_daemon({"dht": DHT}):
        assert invoke(["dht", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == DHT
        assert invoke(["dht"]) == 0
        assert "fallback" in capsys.readouterr().out
