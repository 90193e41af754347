"""The control socket: replies, invalid requests, and clients that disconnect."""

import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.cli.client import converse
from shoal.cli.errors import CommandError
from shoal.node import defaults
from shoal.node.control.messages.encoding import encode
from shoal.node.control.messages.machine import CapacityView
from shoal.node.control.messages.reach import Peers, PeerView
from shoal.node.control.server import ControlServer, Emit, encoded
from shoal.node.errors import ControlError
from shoal.node.settings.config import DataFolder
from shoal.transport.host import localname
from shoal.transport.host.real import RealHost

HOST = RealHost()


class Operations:
    """Fake operations of a daemon, one for each way in which an operation can end."""

    def __init__(self) -> None:
        self.cancelled = trio.Event()
        self.running = trio.Event()

    def table(self) -> Mapping[str, Callable[[dict[str, Any], Emit], Awaitable[dict[str, Any]]]]:
        return {
            "echo": self.echo, "refuse": self.refuse, "hang": self.hang, "flood": self.flood,
            "grouped": self.grouped,
        }  # fmt: skip

    async def echo(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        await emit({"event": "hello", "number": 1})
        return {"request": request}

    async def refuse(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        raise ControlError("no-way", "it is refused", hint="`shoal status`")

    async def grouped(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        async with trio.open_nursery():
            raise ControlError("no-way", "it is refused inside a nursery")

    async def hang(self, _request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        self.running.set()
        try:
            await emit({"event": "begun"})
            await trio.sleep_forever()
        finally:
            self.cancelled.set()
        return {}

    async def flood(self, _request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        try:
            while True:
                await emit({"event": "text", "text": "x" * 10_000})
        finally:
            self.cancelled.set()


@asynccontextmanager
async def serving(
    data: Path,
) -> AsyncIterator[tuple[Path, Operations]]:
    operations = Operations()
    server = ControlServer(HOST, DataFolder(data), operations.table())
    async with trio.open_nursery() as nursery:
        path = await nursery.start(server.run)
        yield path, operations
        nursery.cancel_scope.cancel()


async def lines(stream: trio.SocketStream) -> list[dict[str, Any]]:
    data = b""
    with trio.fail_after(5):
        while piece := await stream.receive_some(65536):
            data += piece
    return [json.loads(line) for line in data.splitlines()]


async def ask(path: Path, data: bytes) -> list[dict[str, Any]]:
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(data)
        return await lines(stream)


@pytest.mark.trio
async def test_events_precede_the_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as (path, _):
        assert path == tmp_path / "control.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        answer = await ask(path, b'{"op": "echo", "x": [1]}\n')
        assert answer == [
            {"event": "hello", "number": 1},
            {"ok": {"request": {"op": "echo", "x": [1]}}},
        ]
    assert not path.exists(), "the socket is removed with the daemon"


@pytest.mark.trio
@pytest.mark.parametrize("op", ["refuse", "grouped"])
async def test_errors_have_codes(tmp_path: Path, op: str) -> None:
    async with serving(tmp_path) as (path, _):
        (answer,) = await ask(path, json.dumps({"op": op}).encode() + b"\n")
    assert answer["error"]["code"] == "no-way"
    assert answer["error"]["message"].startswith("it is refused")


@pytest.mark.trio
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\n", "bad-request"),
        (b"garbage\n", "bad-request"),
        (b"[1]\n", "bad-request"),
        (b'{"op": 1}\n', "bad-request"),
        (b"\xff\xfe\n", "bad-request"),
        (b"[" * 100_000 + b"\n", "bad-request"),
        (b'{"op": "\x1b[2J"}\n', "bad-request"),
        (b'{"op": "nothing"}\n', "unknown-op"),
        (b'{"op": "\\u001b[2J"}\n', "unknown-op"),
        (b"x" * (defaults.CONTROL_REQUEST_LIMIT + 2), "too-large"),
    ],
)
async def test_invalid_request_is_refused(tmp_path: Path, line: bytes, code: str) -> None:
    async with serving(tmp_path) as (path, _):
        (answer,) = await ask(path, line)
        assert answer["error"]["code"] == code
        assert "\x1b" not in answer["error"]["message"]
        assert "ok" in (await ask(path, b'{"op": "echo"}\n'))[-1], "it still serves"


@pytest.mark.trio
async def test_random_bytes_are_harmless(tmp_path: Path) -> None:
    source = random.Random(7)
    async with serving(tmp_path) as (path, _):
        for _ in range(50):
            data = source.randbytes(source.randrange(200))
            if source.random() < 0.5:
                data += b"\n"
            async with await trio.open_unix_socket(str(path)) as stream:
                await stream.send_all(data)
                if source.random() < 0.5 and b"\n" in data:
                    await lines(stream)
        assert "ok" in (await ask(path, b'{"op": "echo"}\n'))[-1]


@pytest.mark.trio
async def test_disconnecting_client_cancels_its_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as (path, operations):
        stream = await trio.open_unix_socket(str(path))
        await stream.send_all(b'{"op": "hang"}\n')
        with trio.fail_after(5):
            await operations.running.wait()
            assert not operations.cancelled.is_set()
            await stream.aclose()
            await operations.cancelled.wait()


@pytest.mark.trio
async def test_disconnecting_client_cancels_a_flood_of_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as (path, operations):
        stream = await trio.open_unix_socket(str(path))
        await stream.send_all(b'{"op": "flood"}\n')
        await stream.receive_some(1)
        await stream.aclose()
        with trio.fail_after(5):
            await operations.cancelled.wait()


@pytest.mark.trio
async def test_client_that_does_not_read_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails without the deadline: the operation would hold its session forever."""
    monkeypatch.setattr(defaults, "CONTROL_WRITE_TIMEOUT", 0.05)
    async with serving(tmp_path) as (path, operations):
        async with await trio.open_unix_socket(str(path)) as stream:
            await stream.send_all(b'{"op": "flood"}\n')
            with trio.fail_after(5):
                await operations.cancelled.wait()


@pytest.mark.trio
async def test_silent_client_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "CONTROL_REQUEST_TIMEOUT", 0.05)
    async with serving(tmp_path) as (path, _):
        (answer,) = await ask(path, b"")
        assert answer["error"]["code"] == "timeout"


@pytest.mark.trio
async def test_clients_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "CONTROL_CONNECTIONS", 1)
    async with serving(tmp_path) as (path, operations):
        async with await trio.open_unix_socket(str(path)) as first:
            await first.send_all(b'{"op": "hang"}\n')
            await operations.running.wait()
            (answer,) = await ask(path, b'{"op": "echo"}\n')
            assert answer["error"]["code"] == "busy"


@pytest.mark.trio
@pytest.mark.parametrize("proc", [True, False])
async def test_socket_in_a_folder_with_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: bool
) -> None:
    """Linux uses the folder's descriptor; other systems use a symbolic link that is removed."""
    if not proc:
        monkeypatch.setattr(localname, "DESCRIPTORS", tmp_path / "no-proc")
    data = tmp_path / ("d" * 120) / ("e" * 120)
    data.mkdir(parents=True)
    async with serving(data) as (path, _):
        assert path == data / "control.sock" and path.stat().st_mode & 0o777 == 0o600
        answer = await trio.to_thread.run_sync(partial(converse, data, {"op": "echo", "x": 1}))
        assert answer == {"request": {"op": "echo", "x": 1}}
    assert not path.exists()


@pytest.mark.trio
async def test_long_reply_does_not_block_other_tasks() -> None:
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    capacity = CapacityView(2, 1 << 30, True, 1e9, ())
    peer = PeerView(
        peer="x", version="é", address=None, path=None, rtt_ms=1.5, bytes_in=1, bytes_out=2,
        linked_s=None, shards=(), capacity=capacity,
    )  # fmt: skip
    reply = Peers((peer,) * 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        text = await encoded(reply)
        nursery.cancel_scope.cancel()
    assert text == json.dumps(encode(reply))
    assert turns > 1000 // defaults.CONTROL_STEP // 2


@pytest.mark.trio
async def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    """A daemon that was killed does not remove its socket."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "control.sock"))
        killed.listen()
    with pytest.raises(CommandError, match="no daemon is running"):
        await trio.to_thread.run_sync(partial(converse, tmp_path, {"op": "echo"}))
    async with serving(tmp_path) as (path, _):
        assert "ok" in (await ask(path, b'{"op": "echo"}\n'))[-1]
