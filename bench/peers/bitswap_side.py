"""Lattica's two processes for `blob_vs_lattica.py`; run by the Python of an environment with it.

`hold PORT` prints its address, then for each line `N` of its input puts N random blocks of 1 MiB
and prints their names. `get ADDRESS` connects and, for each line `THREADS NAME…`, gets the blocks
with that many threads and prints the seconds that it took.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lattica import Lattica

BLOCK = 1 << 20
CONNECT_S = 10.0


def build(port: int, *bootstraps: str) -> Any:
    builder = Lattica.builder().with_listen_addrs([f"/ip4/127.0.0.1/tcp/{port}"])
    builder = builder.with_mdns(False).with_upnp(False)
    return (builder.with_bootstraps(list(bootstraps)) if bootstraps else builder).build()


def hold(port: int) -> None:
    node = build(port)
    print(f"/ip4/127.0.0.1/tcp/{port}/p2p/{node.peer_id()}", flush=True)
    for line in sys.stdin:
        print(*(node.put_block(os.urandom(BLOCK)) for _ in range(int(line))), flush=True)


def get(address: str) -> None:
    node = build(0, address)
    deadline = time.monotonic() + CONNECT_S
    while not node.get_all_peers() and time.monotonic() < deadline:
        time.sleep(0.05)
    print("ready", flush=True)
    for line in sys.stdin:
        threads, *names = line.split()
        began = time.perf_counter()
        with ThreadPoolExecutor(int(threads)) as pool:
            sizes = list(pool.map(lambda name: len(node.get_block(name)[1]), names))
        took = time.perf_counter() - began
        assert sizes == [BLOCK] * len(names)
        print(took, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
    else:
        get(sys.argv[2])
    os._exit(0)  # its threads do not end by themselves
