"""Lattica's two processes for `rpc_vs_lattica.py`; run by the Python of an environment that has it.

`serve PORT` answers until its input ends. `call ADDRESS` connects and obeys lines of its input:
`one N` and `many N` (128 bytes, one and 64 in flight), `large N` (256 KiB, 64 in flight), `stream
N` (one message of N bytes), `quit`. The reply to each is the seconds that it took, and the CPU
seconds of both processes.
"""

import os
import sys
import time
from collections import deque
from typing import Any

from lattica import ConnectionHandler, Lattica, rpc_method, rpc_stream

SMALL = os.urandom(128)
LARGE = os.urandom(256 * 1024)
IN_FLIGHT = 64
CONNECT_S = 10.0


class Service(ConnectionHandler):
    """Methods that the other side calls."""

    @rpc_method
    def echo(self, data: bytes) -> bytes:
        return data

    @rpc_method
    def count(self, data: bytes) -> int:
        return len(data)

    @rpc_stream
    def count_stream(self, data: bytes) -> int:
        return len(data)

    @rpc_method
    def cpu(self, _: int) -> float:
        return time.process_time()


def build(port: int, *bootstraps: str) -> Any:
    builder = Lattica.builder().with_listen_addrs([f"/ip4/127.0.0.1/tcp/{port}"])
    builder = builder.with_mdns(False).with_upnp(False)
    return (builder.with_bootstraps(list(bootstraps)) if bootstraps else builder).build()


def serve(port: int) -> None:
    node = build(port)
    service = Service(node)
    print(f"/ip4/127.0.0.1/tcp/{port}/p2p/{node.peer_id()}", flush=True)
    sys.stdin.read()
    del service


def one(stub: Any, calls: int) -> None:
    for _ in range(calls):
        stub.echo(SMALL).result()


def many(stub: Any, calls: int, payload: bytes = SMALL) -> None:
    waiting: deque[Any] = deque()
    for _ in range(calls):
        waiting.append(stub.count(payload))
        if len(waiting) >= IN_FLIGHT:
            waiting.popleft().result()
    while waiting:
        waiting.popleft().result()


def large(stub: Any, calls: int) -> None:
    many(stub, calls, LARGE)


def stream(stub: Any, size: int) -> None:
    assert stub.count_stream(bytes(size)).result(timeout=120) == size


def call(address: str) -> None:
    node = build(0, address)
    service = Service(node)
    deadline = time.monotonic() + CONNECT_S
    while not node.get_all_peers() and time.monotonic() < deadline:
        time.sleep(0.05)
    stub = service.get_stub(address.rsplit("/", 1)[1])
    works = {"one": one, "many": many, "large": large, "stream": stream}
    print("ready", flush=True)
    for line in sys.stdin:
        name, _, size = line.partition(" ")
        if name.strip() == "quit":
            break
        theirs = stub.cpu(0).result()
        ours, began = time.process_time(), time.perf_counter()
        works[name](stub, int(size))
        wall, ours = time.perf_counter() - began, time.process_time() - ours
        print(wall, ours + stub.cpu(0).result() - theirs, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        call(sys.argv[2])
    os._exit(0)  # its threads do not end by themselves
