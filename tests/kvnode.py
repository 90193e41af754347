"""A whole daemon as a process, as `shoal node` starts it, with commands that set the KV it holds.

Its engine has no model, so a test announces chunks in its place.

    python -m tests.kvnode DATA [BOOTSTRAP]

Reads commands from standard input, one JSON object per line, and answers each with one. `KvNode`
starts one, for tests.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trio

from shoal.dht.records.key import key_text
from shoal.node.daemon.daemon import Node, run_node
from shoal.node.settings.config import NodeConfig
from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from tests.dht.chains import LAYERS, chain, forked
from tests.program import Program, say

LOOPBACK = "127.0.0.1"


async def main(data: str, bootstrap: list[str]) -> None:
    known = tuple(Address.parse(text) for text in bootstrap)
    config = NodeConfig(data=Path(data), listen=LOOPBACK, bootstrap=known, model="none")
    start = partial(run_node, RealHost(), config, engine_factory=lambda *_: None)
    async with trio.open_nursery() as nursery:
        node: Node = await nursery.start(start)
        say({"address": str(node.listening.addresses[0]), "peer": node.identity.peer})
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            say(await obey(node, **json.loads(line)))
        node.stop()


async def obey(node: Node, do: str, blocks: int, fork: int = 0) -> dict[str, Any]:
    """Execute a command for the common chain, `blocks` long, or for one that differs from it after
    `fork`.
    """
    wanted = chain(blocks)
    if fork:
        wanted = forked(wanted, fork, blocks - fork, seed=fork)
    if do == "announce":
        node.kv.announce(wanted, LAYERS)
    if do == "withdraw":
        node.kv.withdraw(wanted)
    if do != "longest":
        return {"key": key_text(wanted.key)}
    found = await node.kv.longest(wanted, LAYERS)
    return {
        "providers": {each.peer: each.chunks for each in found.providers},
        "rounds": found.rounds,
        "asked": [step.contact.peer for step in found.lookup.path] if found.lookup else [],
    }


class KvNode(Program):
    """A daemon process: `node.do("longest", blocks=…, fork=…)`."""

    def __init__(self, data: Path, *bootstrap: str) -> None:
        super().__init__("tests.kvnode", str(data), *bootstrap)
        self.data = data
        self.address = str(self.told["address"])

    def do(self, what: str, blocks: int = 0, fork: int = 0, **more: Any) -> dict[str, Any]:
        return super().do(what, blocks=blocks, fork=fork, **more)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2:])
