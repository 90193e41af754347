"""The codec: frames cut at any boundary, heads that are bounded and typed."""

import time
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.defaults import FRAME_HEAD_BYTES, FRAME_PAYLOAD_BYTES
from shoal.transport.lane import frame as wire
from shoal.transport.lane.frame import (
    PREFIX,
    Cutter,
    Fault,
    decode_code,
    decode_header,
    decode_request,
    encode,
    encode_code,
    encode_header,
    encode_request,
    first_frame,
)


def test_the_prefix_is_as_specified() -> None:
    data = PREFIX.pack(0x01020304, 0x10, 0x06, 0x0708, 0x090A0B0C, 0x0D, 0x0E)
    assert data.hex() == "01020304100607080 90a0b0c000000000000000d000000000000000e".replace(
        " ", ""
    )


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=200)), max_size=8),
    st.lists(st.integers(1, 100), min_size=1),
)
def test_frames_come_out_whole_however_they_arrive(
    bodies: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    data = b"".join(
        PREFIX.pack(len(head) + len(payload), 0x10, 2, len(head), 3, number, 4) + head + payload
        for number, (head, payload) in enumerate(bodies)
    )
    cutter, found, at, turn = Cutter(), [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        found += list(cutter.feed(data[at : at + step]))
        at, turn = at + step, turn + 1
    assert [(bytes(f.head), bytes(f.payload)) for f in found] == bodies
    assert [f.ident for f in found] == list(range(len(bodies)))
    assert all((f.kind, f.flags, f.received, f.offset) == (0x10, 2, 3, 4) for f in found)


@pytest.mark.parametrize(
    ("length", "head"),
    [
        (FRAME_PAYLOAD_BYTES + 1, 0),
        (FRAME_HEAD_BYTES + 1, FRAME_HEAD_BYTES + 1),
        (FRAME_PAYLOAD_BYTES + 101, 100),
        (99, 100),
        (0xFFFFFFFF, 0xFFFF),
    ],
)
def test_an_oversized_prefix_is_refused_at_once(length: int, head: int) -> None:
    with pytest.raises(Fault) as fault:
        list(Cutter().feed(PREFIX.pack(length, 0x10, 0, head, 0, 1, 0)))
    assert fault.value.code == "frame-too-large"


def test_the_largest_frame_passes() -> None:
    size = FRAME_PAYLOAD_BYTES + FRAME_HEAD_BYTES
    data = PREFIX.pack(size, 0x10, 0, FRAME_HEAD_BYTES, 0, 1, 0) + bytes(size)
    assert len(list(Cutter().feed(data))) == 1


def test_payloads_are_slices_and_not_copies() -> None:
    data = PREFIX.pack(1000, 0x21, 0, 0, 0, 2, 0) + bytes(1000)
    (frame,) = Cutter().feed(data)
    assert isinstance(frame.payload, memoryview) and frame.payload.obj is data


def test_the_first_frame_and_what_follows() -> None:
    data = encode(wire.HELLO, head=b"abc") + b"rest"
    assert all(first_frame(data[:size], 10) is None for size in range(31))
    found = first_frame(data, 10)
    assert found is not None and (found[0].head, found[1]) == (b"abc", b"rest")
    with pytest.raises(Fault):
        first_frame(data, 2)
    with pytest.raises(Fault):
        first_frame(PREFIX.pack(5, wire.HELLO, 0, 3, 0, 0, 0), 10)


def test_requests_round_trip() -> None:
    header = {"a": [1, b"x", None, 2.5, {"deep": True}], "ü": -1}
    assert decode_request(encode_request("model.chunks", header)) == ("model.chunks", header)
    assert decode_request(encode_request("m", {})) == ("m", {})
    assert encode_request("m", {}) == b"\x01m"


@pytest.mark.parametrize("method", ["", "m" * 65, "ü" * 33])
def test_the_size_of_a_method_is_bounded(method: str) -> None:
    with pytest.raises(ValueError, match="method"):
        encode_request(method, {})


def test_the_size_of_a_header_is_bounded() -> None:
    for encoder in (encode_header, lambda header: encode_request("m", header)):
        with pytest.raises(ValueError, match="at most"):
            encoder({"x": bytes(FRAME_HEAD_BYTES)})


BOMBS = {
    "32 KiB of empty maps in a list": b"\x81\xa1a\xdc\x7f\x00" + b"\x80" * 0x7F00,
    "a list of 4e9": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "a map of 4e9": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "nested 30,000 deep": b"\x81\xa1a" + b"\x91" * 30_000,
    "nested maps": b"\x81\xa1a" * 10_000,
    "bad text": b"\x81\xa1a\xa2\xff\xfe",
    "a reserved byte": b"\xc1",
    "two objects": b"\x80\x80",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_little(name: str) -> None:
    tracemalloc.start()
    began = time.perf_counter()
    try:
        decode_header(BOMBS[name])
    except Fault as fault:
        assert fault.code == "bad-head"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert time.perf_counter() - began < 0.5


@pytest.mark.ci
def test_without_the_bound_on_heads_a_bomb_is_costly() -> None:
    """Twin: the same bomb without the cap takes more than the cap allows."""
    tracemalloc.start()
    msgpack.unpackb(b"\xdd\x00\x02\x00\x00" + b"\x80" * 0x20000, max_array_len=1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak > 4 << 20


@given(st.binary(max_size=200))
def test_decoders_raise_nothing_but_faults(data: bytes) -> None:
    for decoder in (decode_header, decode_request, decode_code):
        try:
            decoder(data)
        except Fault as fault:
            assert fault.code == "bad-head"


@given(st.text(), st.text())
def test_decoded_codes_and_messages_are_safe_to_show(code: str, text: str) -> None:
    try:
        word, words = decode_code(encode_code(code, text.encode(errors="ignore").decode()))
    except (Fault, UnicodeEncodeError):
        return
    assert word and all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in word)
    assert words.isprintable() and len(words) <= 200
