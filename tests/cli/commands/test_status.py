"""Reachability and links in `shoal status` and `shoal peers`."""

import json
from typing import Any

import pytest

from shoal.cli.commands.status import (
    disk_line,
    link_row,
    links_text,
    peer_row,
    relaying_line,
    status_rows,
    swarm_line,
)
from shoal.cli.main import invoke
from shoal.node.control.messages.encoding import Json, decode
from shoal.node.control.messages.machine import DiskView
from shoal.node.control.messages.node import Status
from shoal.node.control.messages.reach import LinkView, PeerView, Relaying

from ..conftest import LINK, PEER, STATUS


def test_memory_counts_every_process() -> None:
    rows = dict(status_rows(decode(Status, STATUS)))
    assert rows["memory"] == "110.0 MiB resident: daemon 80.0 MiB, text of tiny 30.0 MiB"
    assert rows["offered"] == "8.0 MiB reserved for layers and KV caches, of 1.0 GiB (`--memory`)"


def test_status_shows_the_machine_and_its_devices() -> None:
    rows = dict(status_rows(decode(Status, STATUS)))
    assert rows["machine"] == "2 cores, 1.0 GiB offered, disk reads 500.0 MB/s, engine"
    assert rows["device"] == (
        "cpu (Ryzen 7, AVX2): 100 Gflop/s in float32, 200 in bfloat16, memory 20.0 GB/s, "
        "up to 8 rows in the time of one"
    )
    assert rows["unused"] == "RTX 4070: torch 2.13.0+cpu was built without CUDA"


def test_status_shows_reachability_and_relays() -> None:
    rows = dict(status_rows(decode(Status, STATUS)))
    assert rows["reachable"] == "through 1 relay"
    assert rows["relays"] == "reservation at 12D3KooWRelay (12.3 ms)"
    assert rows["relaying"] == "2 reservations, 1 circuit, 3.0 MiB carried, up to 1.0 MB/s"
    assert "relays" not in dict(status_rows(decode(Status, {**STATUS, "relays": []})))


def test_status_shows_the_disk_limit_and_the_choice_of_a_model() -> None:
    serving = {**STATUS["serving"], "why": "tiny: every node ships with it"}
    rows = dict(status_rows(decode(Status, {**STATUS, "serving": serving})))
    assert rows["chosen"] == "tiny: every node ships with it"
    assert rows["disk"] == (
        "5.0 MiB by models and blobs, of at most 50.0 GiB, depending on the free space "
        "(`--disk` sets it)"
    )
    assert "chosen" not in dict(
        status_rows(decode(Status, {**STATUS, "serving": {**serving, "why": None}}))
    )
    disk = {"used_bytes": 0, "limit_bytes": None, "set": True}
    assert disk_line(decode(DiskView, disk)).endswith("no limit")
    assert disk_line(decode(DiskView, {**disk, "limit_bytes": 1 << 30})).endswith("at most 1.0 GiB")


def test_an_address_through_a_relay_can_be_copied_whole() -> None:
    relay = f"/ip4/192.0.2.7/tcp/4001/p2p/{'R' * 52}/p2p-circuit/p2p/{'P' * 52}"
    assert dict(status_rows(decode(Status, {**STATUS, "addresses": [relay]})))["address"] == relay


def test_relaying_is_off() -> None:
    off = {**STATUS["relaying"], "on": False}
    assert "no other node is known to reach" in relaying_line(
        decode(Relaying, {**off, "allowed": True})
    )
    assert "--relay none" in relaying_line(decode(Relaying, {**off, "allowed": False}))


def test_links_and_why_one_is_not_direct() -> None:
    direct = {**LINK, "peer": "12D3KooWNear", "path": "lan", "medium": "tcp", "why_relayed": None}
    text = links_text(decode(tuple[LinkView, ...], [LINK, direct]))
    assert text.splitlines()[1].split() == [
        "12D3KooWOther", "relayed", "circuit", "31.4", "ms", "1.2", "kB/s", "-", "3", "s",
    ]  # fmt: skip
    assert text.splitlines()[3:] == [
        "12D3KooWOther is not direct: a direct path has not been tried yet"
    ]
    assert links_text(decode(tuple[LinkView, ...], [])) == "there are no links"


def test_a_link_without_a_path() -> None:
    lost = {**LINK, "path": "none", "medium": None, "rtt_ms": None, "rate_in": None}
    assert link_row(decode(LinkView, lost))[1:4] == ["none", "-", "-"]
    said = links_text(decode(tuple[LinkView, ...], [lost])).splitlines()[-1]
    assert said == "12D3KooWOther cannot be reached now; the node keeps trying"


def test_links_are_requested_only_with_the_option(
    fake_daemon: Any, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon(answers):
        assert invoke(["status", "--links"]) == 0
        assert "12D3KooWOther is not direct: " in capsys.readouterr().out
        assert invoke(["status", "--links", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["links"] == [LINK]
    with fake_daemon({"status": STATUS}):
        assert invoke(["status"]) == 0


@pytest.mark.parametrize("may", [True, False])
def test_hint_for_a_node_that_may_not_invite(
    may: bool, fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon({"peers": {"peers": [], "may_invite": may}}):
        assert invoke(["peers"]) == 0
    assert ("`shoal invite`" in capsys.readouterr().out) == may


def test_role_in_a_group() -> None:
    def line(role: str, members: int) -> str:
        place: Any = {"role": role, "members": members}
        return swarm_line(decode(Status, {**STATUS, "private": True, "group": place}))

    assert line("owner", 4) == "private, owner, 4 members"
    assert line("client", 1) == "private, client, 1 member"


def test_status_shows_the_predicted_speed_and_its_error() -> None:
    rows = dict(status_rows(decode(Status, STATUS)))
    assert (
        rows["speed"]
        == "7.5 tokens/s of one request in these layers; predictions 6 % off, over 40 steps"
    )
    fresh = {"tokens_per_s": 7.5, "error": 0.0, "samples": 0}
    serving = {**STATUS["serving"], "predicted": fresh}
    rows = dict(status_rows(decode(Status, {**STATUS, "serving": serving})))
    assert rows["speed"].endswith("; not compared with any steps yet")
    serving = {**STATUS["serving"], "predicted": None}
    assert "speed" not in dict(status_rows(decode(Status, {**STATUS, "serving": serving})))


def test_status_shows_how_far_predictions_about_answers_were_wrong() -> None:
    def line(**change: float) -> str | None:
        answers = {**STATUS["answers"], **change}
        return dict(status_rows(decode(Status, {**STATUS, "answers": answers}))).get("answers")

    first = "predicted time to the first token 21 % off"
    assert line() == f"{first}, of a further token 6 % off, over 12 answers"
    assert line(token_samples=0) == f"{first}, over 12 answers"
    assert line(first_samples=0) is None


def test_status_and_peers_show_room() -> None:
    model = {**STATUS["models"][0], "complete": True, "missing": None, "room_tokens": 1792}
    rows = dict(status_rows(decode(Status, {**STATUS, "models": [model]})))
    assert rows["models"] == "tiny: 6 layers, complete, room for 1,792 tokens of prompt and answer"
    assert rows["serving"].endswith("room for 100 tokens")
    serving = {**STATUS["serving"], "room_tokens": 30}
    rows = dict(status_rows(decode(Status, {**STATUS, "serving": serving})))
    assert rows["serving"].endswith("room for 100 tokens, 30 now")
    assert "room" not in dict(status_rows(decode(Status, STATUS)))["models"]
    assert peer_row(decode(PeerView, PEER))[1:3] == ["tiny 0:2", "100"]
    other = {**STATUS["serving"]["shard"], "layers": "2:6", "kv_tokens_free": 7}
    assert peer_row(decode(PeerView, {**PEER, "shards": [*PEER["shards"], other]}))[2] == "100, 7"
    assert peer_row(decode(PeerView, {**PEER, "shards": []}))[1:3] == ["-", "-"]


def test_peers_and_links_fit_80_columns_with_short_ids(
    fake_daemon: Any,
    answers: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ids = ["12D3KooW" + letter * 44 for letter in "abc"]
    far = {**PEER, "address": "[2001:db8:1234:5678:9abc:def0:1234:5678]:45678", "rtt_ms": 123.4}
    why = f"the last try to {ids[0]} failed: " + "it did not answer, " * 9 + "the end"
    answers |= {
        "peers": {"peers": [{**far, "peer": ident} for ident in ids]},
        "links": {"links": [{**LINK, "peer": i, "why_relayed": why} for i in ids], "span_s": 1.0},
    }
    with fake_daemon(answers):
        assert invoke(["peers"]) == 0 and invoke(["status", "--links"]) == 0
        text = capsys.readouterr().out
        assert invoke(["peers", "--json"]) == 0
        assert ids[0] in capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("the end") == 3
    assert ids[0] not in text and text.count("12D3KooWaaaaaa") >= 5


def test_work_without_its_client_is_shown() -> None:
    work: Json = {
        "doing": [{"job": "ab" * 32, "kind": "embed\x1b[2J", "author": "p" * 52, "pieces": 3}],
        "jobs": 2,
        "rows": 1000,
        "rows_done": 120,
        "tunings": [{"id": "x", "name": "poems", "state": "running", "step": 3, "steps": 100}],
        "tuned_for": 1,
    }
    rows = status_rows(decode(Status, {**STATUS, "work": work}))
    said = [value for name, value in rows if name in ("doing", "jobs", "tuning")]
    assert said[0].startswith("job abababab (embed") and said[0].endswith(", 3 pieces")
    assert "\x1b" not in said[0]
    assert said[1:] == [
        "2 own jobs, 120 of 1000 rows done",
        "poems: running, step 3 of 100",
        "the layers here are open for 1 fine-tuning",
    ]
