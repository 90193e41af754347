"""The KV index between whole daemons: announced, found, withdrawn, and gone with its provider."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.daemons import daemons, shoal
from tests.kvnode import KvNode

BLOCKS = 512
ROUNDS = 3  # maximum of requests to one provider
TTL = 30.0  # seconds for a record to be announced and withdrawn


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., KvNode]]:
    with ExitStack() as stack:

        def start(name: str, *bootstrap: str) -> KvNode:
            node = KvNode(tmp_path / name, *bootstrap)
            stack.callback(node.kill)
            return node

        yield start


def until(true: Callable[[], object]) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < TTL
        time.sleep(0.2)


@pytest.mark.long
def test_the_longest_prefix_between_daemons(nodes: Callable[..., KvNode], tmp_path: Path) -> None:
    """Three nodes hold 512, 300 and 7 blocks of a prefix; the fourth asks, and a plain `shoal node`
    sees the records.
    """
    whole = nodes("whole")
    part, short, asker = (nodes(name, whole.address) for name in ("part", "short", "asker"))
    key = str(whole.do("announce", BLOCKS)["key"])
    part.do("announce", BLOCKS, fork=300)
    short.do("announce", 20, fork=7)
    expected = {whole.peer: BLOCKS, part.peer: 300, short.peer: 7}
    found: dict[str, Any] = {}

    def all_found() -> bool:
        found.update(asker.do("longest", BLOCKS))
        return bool(found["providers"] == expected)

    until(all_found)
    assert 1 <= found["rounds"] <= ROUNDS
    assert 0 < len(found["asked"]) == len(set(found["asked"])), "each node is asked once"
    assert next(iter(found["providers"])) == whole.peer

    with daemons() as start:
        plain = start(tmp_path / "plain", "--bootstrap", whole.address, "--no-lan", torch=False)
        plain.wait_until(lambda status: status["peers"] == 4)

        def seen() -> dict[str, int]:
            done = shoal("find", key, "--json", "--data", str(plain.data))
            searches = json.loads(done.stdout)["searches"]
            records = [record for each in searches for record in each["records"]]
            return {each["author"]: each["says"]["blocks"] for each in records}

        until(lambda: seen() == {whole.peer: BLOCKS, part.peer: BLOCKS, short.peer: 20})
        text = shoal("find", key, "--data", str(plain.data)).stdout
        assert "512 blocks, layers 0:8 (bfloat16)" in text

        whole.do("withdraw", BLOCKS)
        until(lambda: whole.peer not in seen())
    until(lambda: asker.do("longest", BLOCKS)["providers"] == {part.peer: 300, short.peer: 7})
    part.kill()  # its record stays until it expires, but no node serves it
    until(lambda: asker.do("longest", BLOCKS)["providers"] == {short.peer: 7})
