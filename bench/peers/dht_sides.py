"""Lattica's and hivemind's part of `dht_vs_peers.py`; run by the Python of their environments.

`lattica NODES` or `hivemind NODES` starts that many nodes on loopback, says `ready`, and obeys
lines of its input: `rounds N` stores and gets N values, each from a node drawn at random, and
prints the milliseconds of all stores, then of all gets; `writers N` lets N nodes write to one key
at once, and prints how many of the N values a reader sees. The node that is asked for a value does
not hold it itself, if the system tells which nodes do.
"""

import os
import random
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

warnings.filterwarnings("ignore")
LIFE_S = 600.0
SETTLE_S = 5.0


class LatticaNodes:
    """Nodes of Lattica in this process, started as in its own examples."""

    def __init__(self, count: int) -> None:
        from lattica import Lattica

        def build(port: int, *bootstraps: str) -> Any:
            builder = Lattica.builder().with_listen_addrs([f"/ip4/127.0.0.1/tcp/{port}"])
            builder = builder.with_mdns(False).with_upnp(False)
            return (builder.with_bootstraps(list(bootstraps)) if bootstraps else builder).build()

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        first = build(port)
        time.sleep(0.5)
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{first.peer_id()}"
        self.nodes = [first, *(build(0, address) for _ in range(count - 1))]
        time.sleep(SETTLE_S)

    def store(self, node: Any, key: str, value: object) -> bool:
        return bool(node.store(key, value, time.time() + LIFE_S))

    def get(self, node: Any, key: str) -> object:
        found = node.get(key)
        return found.value if found else None

    def others(self, writer: Any, key: str) -> list[Any]:
        """Return nodes that can be asked for the value; the system does not tell which of them hold
        it.
        """
        return [node for node in self.nodes if node is not writer]

    def write(self, node: Any, key: str, name: str) -> None:
        node.store(key, name, time.time() + LIFE_S, subkey=name)

    def seen(self, node: Any, key: str) -> int:
        value = self.get(node, key)
        return len(value) if isinstance(value, dict) else 0


async def _lacks(key: str, dht: Any, node: Any) -> bool:
    """Whether a node of hivemind has nothing under the key; runs in the process of the node."""
    from hivemind.dht.routing import DHTID

    name = DHTID.generate(source=key)
    return node.protocol.storage.get(name) is None and node.protocol.cache.get(name) is None


class HivemindNodes:
    """Nodes of hivemind: one process of Python and one of its daemon per node."""

    def __init__(self, count: int) -> None:
        from hivemind import DHT
        from hivemind.utils import get_dht_time

        self.now = get_dht_time
        first = DHT(start=True)
        maddrs = first.get_visible_maddrs()
        others = [DHT(initial_peers=maddrs, start=True) for _ in range(count - 1)]
        self.nodes = [first, *others]

    def store(self, node: Any, key: str, value: object) -> bool:
        return bool(node.store(key, value, expiration_time=self.now() + LIFE_S))

    def get(self, node: Any, key: str) -> object:
        found = node.get(key, latest=True)
        return found.value if found else None

    def others(self, writer: Any, key: str) -> list[Any]:
        """Return nodes that hold nothing under the key; all but the writer if there are none."""
        rest = [node for node in self.nodes if node is not writer]
        return [node for node in rest if node.run_coroutine(partial(_lacks, key))] or rest

    def write(self, node: Any, key: str, name: str) -> None:
        node.store(key, name, expiration_time=self.now() + LIFE_S, subkey=name)

    def seen(self, node: Any, key: str) -> int:
        value = self.get(node, key)
        return len(value) if isinstance(value, dict) else 0


def rounds(system: Any, count: int, salt: str) -> str:
    """Return the milliseconds of stores, and of gets that returned the value."""
    dice = random.Random(salt)
    stores, gets = [], []
    for number in range(count):
        key = f"{salt} {number}"
        writer = dice.choice(system.nodes)
        began = time.perf_counter()
        stored = system.store(writer, key, number)
        stores.append(time.perf_counter() - began)
        reader = dice.choice(system.others(writer, key))
        began = time.perf_counter()
        value = system.get(reader, key)
        if stored and value == number:
            gets.append(time.perf_counter() - began)
    return " ".join(f"{1000 * each:.3f}" for each in (*stores, *gets))


def writers(system: Any, count: int, key: str) -> int:
    """Return how many of the values of `count` nodes that wrote at the same moment a reader
    sees.
    """
    barrier = threading.Barrier(count)

    def write(number: int) -> None:
        barrier.wait()
        system.write(system.nodes[number % len(system.nodes)], key, f"writer {number}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2.0)
    return max(int(system.seen(node, key)) for node in (system.nodes[0], system.nodes[-1]))


def main() -> None:
    kinds: dict[str, Callable[[int], Any]] = {"lattica": LatticaNodes, "hivemind": HivemindNodes}
    system = kinds[sys.argv[1]](int(sys.argv[2]))
    print("ready", flush=True)
    for turn, line in enumerate(sys.stdin):
        what, count = line.split()
        salt = f"{os.getpid()} {turn}"
        if what == "rounds":
            print(rounds(system, int(count), salt), flush=True)
        else:
            print(writers(system, int(count), salt), flush=True)


if __name__ == "__main__":
    main()
    if sys.argv[1] == "lattica":
        os._exit(0)  # its threads do not end by themselves
