"""A hostile process among real daemons: its records, its false replies, and its false
acknowledgements. Each refusal has a code and is counted where the owner sees it; records
acknowledged by honest nodes are still found.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shoal.dht.records.key import key_text
from shoal.dht.records.record import DOMAIN, BlobBody, OtherBody, PeerBody, seal_record
from shoal.transport.identity import Identity, PeerId
from shoal.transport.signed import seal
from tests.cli.daemons import Daemon, daemons, shoal
from tests.hostile import Hostile, hostile

COUNT = 3
BODY = OtherBody("walk", ("tests",), "")
HOURS = 3_600_000  # ms
LATE_MS = 9_000  # it does not wait for a silent node until a look-up times out


@dataclass
class World:
    nodes: list[Daemon]
    foe: Hostile
    peers: list[str]

    def find(self, node: int, key: str) -> dict[str, Any]:
        """Return what `shoal find KEY --json` prints for a bare key."""
        done = shoal("find", key, "--json", "--data", str(self.nodes[node].data))
        assert done.returncode == 0, done.stderr
        searches: list[dict[str, Any]] = json.loads(done.stdout)["searches"]
        (search,) = (each for each in searches if each["key"] == key)
        return search

    def view(self, node: int) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            shoal("dht", "--json", "--data", str(self.nodes[node].data)).stdout
        )
        return answer

    def until(self, true: Callable[[], object], limit: float = 30.0) -> None:
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < limit, self.view(1)
            time.sleep(0.1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with daemons() as start, hostile() as foe:
        args = ["--no-lan", "--model", "none"]
        nodes = [start(tmp_path / "n0", *args, torch=False)]
        nodes[0].wait_until(lambda status: True)
        args += ["--bootstrap", nodes[0].address]
        nodes += [start(tmp_path / f"n{n}", *args, torch=False) for n in range(1, COUNT)]
        for node in nodes:
            node.wait_until(lambda status: status["peers"] == COUNT - 1)
        peers = [foe.do("link", to=node.address)["peer"] for node in nodes]
        yield World(nodes, foe, peers)


def bad_records(author: Identity) -> dict[str, bytes]:
    """Return invalid records, by the code that each should get."""
    now = int(time.time() * 1000)
    other = Identity.from_seed(b"o" * 32).peer
    good = seal_record(author, BlobBody("ab" * 32, 10, 1), made=now, ttl=3600)

    def raw(**fields: Any) -> bytes:
        return seal(author, DOMAIN, msgpack.packb({"made": now, "ttl": 3600, **fields}))

    def made(at: int) -> bytes:
        return seal_record(author, BlobBody("cd" * 32, 10, 1), made=at, ttl=3600)

    return {
        "expired": made(now - 4 * HOURS),
        "far-future": made(now + 3 * HOURS),
        "bad-type": raw(kind="blob", root=7, size=1, chunks=1),
        "not-provider": raw(kind="peer", provider=other, addresses=[]),
        # the last check: the rest is not checked
        "bad-signature": good[:-1] + bytes([good[-1] ^ 1]),
    }


@pytest.mark.ci
def test_hostile_records_answers_and_silence(world: World) -> None:
    """All in one swarm, because daemons take long to start."""
    refused_each_with_its_code(world)
    a_liar_s_answers_spoil_its_own_path(world, 2, "forged", "bad-signature")
    a_liar_s_answers_spoil_its_own_path(world, 3, "ghosts", "records: 0, new contacts: 64")
    what_is_acknowledged_is_not_lost_where_one_swallows_it(world)


@pytest.mark.long
def test_invalid_answers_are_not_believed(world: World) -> None:
    author = Identity.from_seed(world.foe.seed)
    good = seal_record(author, BODY, made=int(time.time() * 1000), ttl=3600)
    assert world.foe.do("store", to=world.peers[0], records=[good.hex()])["codes"] == [""]
    a_liar_s_answers_spoil_its_own_path(world, 4, "junk", "bad-message")
    a_liar_s_answers_spoil_its_own_path(world, 5, "crowd", "bad-message")


def refused_each_with_its_code(world: World) -> None:
    author = Identity.from_seed(world.foe.seed)
    good = seal_record(author, BODY, made=int(time.time() * 1000), ttl=3600)
    bad = bad_records(author)
    listed = [record.hex() for record in (good, *bad.values(), good)]
    answer = world.foe.do("store", to=world.peers[0], records=listed)
    assert answer["codes"] == ["", *bad, "bad-signature"]
    deep = msgpack.packb({"records": [[0, [[[[]]]]]]}).hex()
    large = msgpack.packb({"records": [[0, good], [0, bytes(3000)]]}).hex()  # one record too large
    for payload in (deep, large, "c1", "00" * 90_000):
        answer = world.foe.do("raw", to=world.peers[0], method="dht.store", payload=payload)
        assert answer == {"failed": "bad-request"}, "its link has ended"
        world.foe.do("link", to=str(world.nodes[0].address))
    counted = world.view(0)["refused"]
    assert counted == {**dict.fromkeys(bad, 1), "bad-signature": 2, "bad-request": 4}
    shown = " ".join(shoal("dht", "--data", str(world.nodes[0].data)).stdout.split())
    refused = "requests and records of other nodes: 4 bad-request, 2 bad-signature, 1 bad-type"
    assert refused in shown
    assert world.find(2, key_text(BODY.key))["records"][0]["author"] == author.peer, "the good one"


def a_liar_s_answers_spoil_its_own_path(world: World, seed: int, find: str, answer: str) -> None:
    """Each hostile process has another identity: a distrusted one is not asked again for a
    while.
    """
    key, author = key_text(BODY.key), world.foe.peer
    now = int(time.time() * 1000)
    good = seal_record(Identity.from_seed(world.foe.seed), BODY, made=now, ttl=3600)
    with hostile(seed) as liar:
        liar.do("answer", find=find, forged=[(good[:-1] + bytes([good[-1] ^ 1])).hex()])
        before = world.view(2)["disbelieved"]
        liar.do("link", to=world.nodes[2].address)
        world.until(lambda: liar.do("counts").get("find", 0) > 0 or find == "ghosts")
        search = world.find(2, key)
        assert [record["author"] for record in search["records"]] == [author], "it is found"
        assert search["records"][0]["by"] in world.peers
        check_path(search, world.peers)
        steps = [each for each in search["path"] if each["peer"] == liar.peer]
        spoilt = {each["path"] for each in steps}
        assert {each["answer"] for each in steps} <= {answer}
        others = [each for each in search["path"] if each["path"] not in spoilt]
        assert {each["peer"] for each in others} <= {*world.peers, author}, "no ghost but there"
        counted = world.view(2)["disbelieved"]
        if find == "ghosts":
            assert len(search["path"]) > 20 and counted == before
        else:
            assert counted[answer] > before.get(answer, 0)


def check_path(search: dict[str, Any], honest: list[str]) -> None:
    """Check that the displayed path is possible: each node asked once, within the time, one hop at
    a time.
    """
    steps = search["path"]
    assert len({each["peer"] for each in steps}) == len(steps)
    assert {each["path"] for each in steps} <= {0, 1, 2}
    assert [each["at_ms"] for each in steps] == sorted(each["at_ms"] for each in steps)
    for each in steps:
        assert 0 <= each["at_ms"] <= search["took_ms"]
        if each["took_ms"] is not None:
            assert each["took_ms"] > 0 and each["at_ms"] + each["took_ms"] <= search["took_ms"] + 1
        else:
            assert each["answer"] == "not yet"
        told = [other for other in steps if other["path"] == each["path"]]
        assert each["hop"] == 1 or any(other["hop"] == each["hop"] - 1 for other in told)
    handed = sum(each["records"] for each in steps if each["peer"] in honest)
    assert handed >= len(search["records"])


def what_is_acknowledged_is_not_lost_where_one_swallows_it(world: World) -> None:
    """The foe acknowledges everything and stores nothing; then it takes stores and never
    replies.
    """
    foe, holder = world.foe, world.nodes[1]
    for number, store in enumerate(("keep", "silent")):
        foe.do("answer", find="honest", store=store)
        foe.do("link", to=holder.address)
        path = holder.data.parent / f"blob-{number}"
        path.write_bytes(os.urandom(2000))
        before = foe.do("counts").get("store", 0)
        done = shoal("blob", "add", str(path), "--json", "--data", str(holder.data))
        root = json.loads(done.stdout)["root"]

        def kept(root: str = root) -> int:
            own = holder.ask("dht")["own"]
            return next((each["stored"] for each in own if each["about"] == root), 0)

        world.until(lambda store=store: kept() == COUNT - 1 + (store == "keep"))  # type: ignore[misc]
        assert foe.do("counts")["store"] > before, "it was told too"
        search = world.find(2, key_text(BlobBody(root, 2000, 1).key))
        (record,) = search["records"]
        assert record["author"] == world.peers[1] and record["says"]["size"] == 2000
    foe.do("answer", find="silent", store="silent")
    foe.do("link", to=world.nodes[2].address)
    search = world.find(2, key_text(BODY.key))
    assert search["records"], "also if it does not reply at all"
    assert search["took_ms"] < LATE_MS
    address = world.peers[1]  # it is announced late, because members already know it
    world.until(
        lambda: any(
            each["about"] == address and each["stored"] for each in holder.ask("dht")["own"]
        ),
        120.0,
    )
    holder.kill()
    assert world.find(2, key_text(PeerBody(PeerId(world.peers[1]), ()).key))["records"]
