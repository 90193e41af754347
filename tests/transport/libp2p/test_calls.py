"""Calls of strangers: what is published is answered, at a bounded cost."""

from typing import Any

import msgpack
import pytest
import trio

from shoal.transport.errors import DialFailed
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits
from shoal.transport.libp2p.calls import CALL, decode_request
from shoal.transport.libp2p.multistream import line
from shoal.transport.libp2p.varint import prefixed, read_uvarint
from shoal.transport.libp2p.yamux import DATA
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.transport.libp2p.pipes import THEIRS, RawPeer, raw_peer, responder

pytestmark = pytest.mark.trio


class Ours:
    """Handlers, and the calls they got."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.most = 0
        self.open = 0

    def echo(self, call: Call) -> Reply:
        self.calls.append(call)
        return Reply(call.header, call.payload)

    async def slow(self, call: Call) -> Reply:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(float(str(call.header["s"])))
        finally:
            self.open -= 1
        return Reply({"done": True})

    def no(self, call: Call) -> Refusal:
        return Refusal("not-today", "come again")

    async def broken(self, call: Call) -> Reply:
        raise DialFailed("unreachable", "the other one is away")

    def huge(self, call: Call) -> Reply:
        return Reply({}, bytes(2 << 20))

    def odd(self, call: Call) -> Reply:
        return Reply({"x": object()})

    def published(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in ("echo", "slow", "no", "broken", "huge", "odd")
        }


def request(method: Any, header: Any = None, payload: Any = b"") -> bytes:
    packed: bytes = msgpack.packb({"method": method, "header": header or {}, "payload": payload})
    return packed


async def call(peer: RawPeer, stream: int, body: bytes) -> dict[str, Any]:
    await peer.open(stream, CALL, prefixed(body))
    return reply_in(await peer.answer(stream))


def reply_in(data: bytes) -> dict[str, Any]:
    data = data.removeprefix(line("/multistream/1.0.0") + line(CALL))
    found = read_uvarint(data)
    assert found is not None
    size, at = found
    assert len(data) == at + size
    reply: dict[str, Any] = msgpack.unpackb(data[at:])
    return reply


async def test_a_published_method_is_called(autojump_clock: Any) -> None:
    ours = Ours()
    async with raw_peer(responder(published=ours.published)) as peer:
        reply = await call(peer, 1, request("echo", {"n": 1, "b": b"x"}, b"payload"))
        assert reply == {"header": {"n": 1, "b": b"x"}, "payload": b"payload"}
        assert ours.calls == [Call(THEIRS.peer, {"n": 1, "b": b"x"}, b"payload")]
        reply = await call(peer, 3, request("slow", {"s": 0.5}))
        assert reply == {"header": {"done": True}, "payload": b""}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (request("unpublished"), "unknown-method"),
        (request("no"), "not-today"),
        (request("broken"), "unreachable"),
        (request("slow", {"s": "x"}), "bad-request"),
        (request("slow", {"s": 100}), "timeout"),
        (request("huge"), "too-large"),
        (request("odd"), "failed"),
        (request(7), "bad-request"),
        (request("echo", [1]), "bad-request"),
        (request("echo", {1: 2}), "bad-request"),
        (request("echo", {}, "text"), "bad-request"),
        (request("echo", {"a": b"x" * 40_000}), "bad-request"),
        (request("echo", {"a": [{}] * 40_000}), "bad-request"),
        (request("echo", {"a": [[{}] * 20_000] * 10}), "bad-request"),
        (request("x" * 65), "bad-request"),
        (b"\xc1", "bad-request"),
        (b"", "bad-request"),
        (b"\x91" * 5000, "bad-request"),
        (b"\xdf\xff\xff\xff\xff", "bad-request"),
        (b"\x81\xa6header" + b"\x91" * 5000, "bad-request"),
    ],
)
async def test_refusals_have_codes(autojump_clock: Any, body: bytes, code: str) -> None:
    async with raw_peer(responder(published=Ours().published)) as peer:
        reply = await call(peer, 1, body)
        assert reply["code"] == code and isinstance(reply["message"], str)
        assert (await call(peer, 3, request("echo")))["payload"] == b""  # and it goes on


async def test_a_request_may_not_be_long(autojump_clock: Any) -> None:
    async with raw_peer(responder(published=Ours().published)) as peer:
        await peer.open(1, CALL, b"\xff\xff\xff\xff\x7f")
        assert await peer.answer(1) == line("/multistream/1.0.0") + line(CALL)


async def test_calls_at_once_are_counted(autojump_clock: Any) -> None:
    for calls, total, expected in ((2, 64, 2), (8, 3, 3), (8, 64, 5)):
        ours = Ours()
        limits = Libp2pLimits(calls=calls, calls_total=total)
        async with raw_peer(responder(limits, published=ours.published)) as peer:
            for stream in range(1, 10, 2):
                await peer.open(stream, CALL, prefixed(request("slow", {"s": 5})))
            await trio.sleep(1)
            assert ours.most == ours.open == expected
            await trio.sleep(10)
            assert ours.open == 0


async def test_a_request_that_never_ends_is_given_up(autojump_clock: Any) -> None:
    ours = Ours()
    limits = Libp2pLimits(call_s=20, idle_s=100, calls=1)
    async with raw_peer(responder(limits, published=ours.published)) as peer:
        await peer.open(1, CALL, b"\x64")
        for _ in range(30):
            await peer.frame(DATA, 0, 1, 1, b"x")
            await trio.sleep(1)
        assert (await call(peer, 3, request("echo")))["payload"] == b""  # the place is free


async def test_calls_are_rationed(autojump_clock: Any) -> None:
    """Each counts as CALL_COST and a stream: at 8 KiB per second that is about one a second."""
    times = []
    for rate in (8 << 10, 1 << 20):
        ours = Ours()
        limits = Libp2pLimits(peer_rate=rate, peer_burst_bytes=8 << 10)
        async with raw_peer(responder(limits, published=ours.published)) as peer:
            began = trio.current_time()
            for stream in range(1, 41, 2):
                await call(peer, stream, request("echo"))
            times.append(trio.current_time() - began)
            assert len(ours.calls) == 20
    assert times[0] > 18 and times[1] < 1


async def test_a_peer_that_goes_away_cancels_its_calls(autojump_clock: Any) -> None:
    ours = Ours()
    async with raw_peer(responder(published=ours.published)) as peer:
        await peer.open(1, CALL, prefixed(request("slow", {"s": 25})))
        await trio.sleep(1)
        assert ours.open == 1
        peer.byte_stream.close()
        await peer.ended.wait()
        assert ours.open == 0


def _bomb(depth: int) -> bytes:
    return b"\x83\xa6method\xa4echo\xa6header\x81\xa1a" + b"\x91" * depth + b"\xa7payload\xc4\x00"


async def test_nested_bombs_are_refused() -> None:
    for depth in (100, 2000, 30_000):
        try:
            decode_request(_bomb(depth))
        except Fault as fault:
            assert fault.code == "bad-request"
