"""A fake daemon behind a real control socket, for tests of the commands."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.node.control.server import ControlServer, Emit
from shoal.node.settings.config import DataFolder
from shoal.transport.host.real import RealHost

Operation = Callable[[dict[str, Any], Emit], Awaitable[Mapping[str, Any]]]


@contextmanager
def _daemon(data: Path, operations: Mapping[str, Operation]) -> Iterator[None]:
    started = threading.Event()
    scope = trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        server = ControlServer(RealHost(), DataFolder(data), operations)
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                started.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert started.wait(5)
    try:
        yield
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join(5)


FakeDaemon = Callable[[Mapping[str, Any]], Any]


@pytest.fixture
def fake_daemon(tmp_path: Path) -> FakeDaemon:
    """Return a function that serves fake replies: `with fake_daemon({"status": answer}):`.

    An answer is a value, an error to raise, or a list of events with the answer last.
    """

    def operation(answer: Any) -> Operation:
        async def answer_it(request: dict[str, Any], emit: Emit) -> Mapping[str, Any]:
            if callable(answer):
                return await answer(request, emit)  # type: ignore[no-any-return]
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, list):
                for event in answer[:-1]:
                    await emit(event)
                return answer[-1]  # type: ignore[no-any-return]
            return answer  # type: ignore[no-any-return]

        return answer_it

    return lambda answers: _daemon(tmp_path, {op: operation(a) for op, a in answers.items()})


Converse = Callable[..., Any]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Converse], None]:
    """Return a function that replaces the control socket by a function, which gets the operation,
    `on_event` and the fields of the request, and returns the reply."""

    def replace(fake: Converse) -> None:
        def converse(
            _data: Path, message: dict[str, Any], on_event: Any = None, *, wait: bool = False
        ) -> Any:
            return fake(message["op"], on_event, {k: v for k, v in message.items() if k != "op"})

        monkeypatch.setattr("shoal.cli.client.converse", converse)

    return replace


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make commands of a test use the test's folder and no colours."""
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)


SPEED: dict[str, Any] = {"bandwidth": 2e10, "float32": 1e11, "bfloat16": 2e11, "batch": 8}
MACHINE: dict[str, Any] = {
    "progress": "measured", "failure": None, "load_rate": 5e8,
    "devices": [
        {"name": "cpu", "label": "Ryzen 7", "instructions": "AVX2", "memory_bytes": 8 << 30,
         "used": True, "unused": None, "hint": None, "speed": SPEED},
        {"name": None, "label": "RTX 4070", "instructions": "", "memory_bytes": 0, "used": False,
         "unused": "torch 2.13.0+cpu was built without CUDA",
         "hint": "install a build with it", "speed": None},
    ],
    "kernels": [
        {"name": "avx2", "unused": None, "beside": None},
        *({"name": name, "unused": "this processor lacks the instructions", "beside": None}
          for name in ("avx512bf16", "avx512")),
    ],
}  # fmt: skip
STATUS: dict[str, Any] = {
    "peer": "12D3KooWNode", "version": "0.1.0", "data": "/data", "pid": 1, "uptime_s": 75.0,
    "addresses": ["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWNode"], "private": False,
    "group": None, "peers": 1,
    "reach": {"code": "relayed", "sentence": "through 1 relay", "hint": None},
    "relays": [{"peer": "12D3KooWRelay", "rtt_ms": 12.34, "expires_s": 1800.0}],
    "relaying": {"on": True, "allowed": True, "rate": 1_000_000, "places": 2,
                 "circuits": 1, "strangers": 0, "bytes": 3 << 20, "refused": {"full": 1}},
    "serving": {
        "phase": "serving", "state": "serving layers 0:2 of tiny",
        "done_bytes": 0, "total_bytes": 0,
        "shard": {"model": "tiny", "root": "ab" * 32, "layers": "0:2", "embedding": True,
                  "head": False, "dtype": "float32", "kv_tokens_free": 100,
                  "exactness": "AVX2 onednn"},
        "predicted": {"tokens_per_s": 7.5, "error": 0.0612, "samples": 40},
    },
    "beside": [],
    "models": [{"name": "tiny", "root": "ab" * 32, "layers": 6, "weight_bytes": 8 << 20,
                "local": True, "complete": False, "missing": "no node holds layers 2:6",
                "vouchers": [{"peer": "12D3KooWNode", "source": "here", "age_s": 0.0}]}],
    "memory": {"offered_bytes": 1 << 30, "loaded_bytes": 8 << 20, "processes": [
        {"name": "daemon", "pid": 1, "resident_bytes": 80 << 20},
        {"name": "text of tiny", "pid": 2, "resident_bytes": 30 << 20}]},
    "disk": {"used_bytes": 5 << 20, "limit_bytes": 50 << 30, "set": False},
    "sessions": {"stage": 0, "gateway": 0},
    "answers": {"first_error": 0.213, "first_samples": 12, "token_error": 0.061,
                "token_samples": 10},
    "stalls": {"count": 0, "worst_ms": None, "task": None},
    "capacity": {"cores": 2, "memory_bytes": 1 << 30, "engine": True, "load_rate": 5e8,
                 "devices": [{"name": "cpu", "instructions": "AVX2", "memory_bytes": 8 << 30,
                              "speed": SPEED}]},
    "machine": MACHINE,
    "health": [{"name": "no-engine", "sentence": "torch is not installed",
                "hint": "pip install torch"}],
}  # fmt: skip
PEER: dict[str, Any] = {
    "peer": "12D3KooWOther", "version": "0.1.0", "address": "/ip4/127.0.0.1/tcp/9", "rtt_ms": 0.4,
    "path": "relayed",
    "bytes_in": 2048, "bytes_out": 10, "linked_s": 3.0,
    "shards": [STATUS["serving"]["shard"]], "capacity": STATUS["capacity"],
}  # fmt: skip
LINK: dict[str, Any] = {
    "peer": "12D3KooWOther", "path": "relayed", "medium": "circuit", "rtt_ms": 31.4,
    "rate_in": 1234.5, "rate_out": None, "bytes_in": 2048, "bytes_out": 10, "linked_s": 3.0,
    "paths": [{"path": "relayed", "medium": "circuit", "address": None, "rtt_ms": 31.4,
              "used": True}],
    "why_relayed": "a direct path has not been tried yet",
}  # fmt: skip
DOCTOR: dict[str, Any] = {
    "peer": "12D3KooWNode", "port": 4001, "measured_s": 75.0, "observers": 2, "links": 3,
    "machine": MACHINE,
    "verdict": {"code": "relayed", "sentence": "through 1 relay", "hint": None},
    "findings": [
        {"code": "no-map", "sentence": "the router 192.168.1.1 maps no ports (UPnP: no answer)",
         "hint": "enable UPnP or NAT-PMP in the router"},
        {"code": "relays", "sentence": "1 relay will carry what cannot come directly",
         "hint": None},
        {"code": "strategy-lan", "sentence": "the local network: works", "hint": None},
        {"code": "strategy-relay", "sentence": "relays: not known yet", "hint": None},
    ],
}  # fmt: skip
FIND: dict[str, Any] = {
    "searches": [{
        "about": "nodes that serve layers of tiny", "key": "cd" * 32, "took_ms": 12.3,
        "records": [
            {"kind": "shard", "author": "12D3KooWNode", "age_s": 3.0, "by": "12D3KooWKeeper",
             "source": "dht", "made": 1, "ttl_s": 7200,
             "says": {"root": "ab" * 32, "start": 0, "stop": 2, "precision": "float32",
                      "speed": 7.5}},
            {"kind": "shard", "author": "12D3KooWFar", "age_s": 75.0, "by": None,
             "source": "members", "made": 1, "ttl_s": 600,
             "says": {"root": "ab" * 32, "start": 2, "stop": 6, "precision": "float32",
                      "speed": 0.0}},
        ],
        "path": [
            {"peer": "12D3KooWDead", "shared": 0, "hop": 1, "path": 0, "at_ms": 0.0,
             "took_ms": None, "answer": "timeout", "records": 0, "contacts": 0},
            {"peer": "12D3KooWKeeper", "shared": 7, "hop": 1, "path": 1, "at_ms": 0.1,
             "took_ms": 2.5, "answer": "2 records, 20 contacts", "records": 2, "contacts": 20},
        ],
    }],
}  # fmt: skip
DHT: dict[str, Any] = {
    "mode": "fallback", "why": "this node is not publicly reachable", "size": 41.7,
    "contacts": 21, "servers": 3, "links": 5,
    "buckets": [{"shared": 0, "contacts": 20, "reachable": 2, "waiting": 4},
                {"shared": 1, "contacts": 1, "reachable": 1, "waiting": 0}],
    "stored": {"records": 12, "bytes": 6 << 10, "limit": 32 << 20},
    "refused": {"expired": 1, "bad-signature": 3}, "disbelieved": {},
    "own": [{"kind": "peer", "key": "cd" * 32, "about": "12D3KooWNode", "gone": False, "stored": 20,
             "announced_s": 75.0, "due_s": 3000.0},
            {"kind": "shard", "key": "ef" * 32, "about": "0:2:float32", "gone": True, "stored": 1,
             "announced_s": None, "due_s": -1.0}],
    "walk": {"ended_s": 75.0, "keys": 2, "messages": 31, "took_s": 0.25},
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "text": "hello", "reason": "length", "prompt_tokens": 3, "tokens": 1, "ttft_ms": 12.0,
    "tokens_per_s": 88.0, "hop_ms": 0.5, "seed": 7,
    "nodes": [{"peer": "12D3KooWNode", "layers": "0:6"}],
}  # fmt: skip


@pytest.fixture
def answers() -> dict[str, Any]:
    """Return the replies of a healthy daemon."""
    return {
        "ping": {"pid": 1, "version": "0.1.0"},
        "status": STATUS,
        "peers": {"peers": [PEER]},
        "links": {"links": [LINK], "span_s": 1.0},
        "doctor": DOCTOR,
        "models": {"models": STATUS["models"]},
        "invite": {
            "code": "ABCDE-FGHJK",
            "expires": 1.0,
            "uses": 1,
            "role": None,
            "address": "5.5.5.5:4001",
            "near": "public",
        },
        "run": [
            {"event": "routed", "stages": ANSWER["nodes"]},
            {"event": "text", "text": "hel"},
            {"event": "text", "text": "lo"},
            ANSWER,
        ],
    }


@pytest.fixture
def model_folder() -> Path:
    """Return an ordinary Hugging Face folder: that of the embedded model."""
    from shoal.node.daemon.embedded import embedded_folder

    return embedded_folder()
