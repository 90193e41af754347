"""Frames are bounded on both sides."""

import pytest

from shoal.tasks.errors import TextError
from shoal.tasks.text.frames import (
    ChildReply,
    Decoded,
    FrameReader,
    Ids,
    TextInfo,
    pack_frame,
    unpack_body,
)
from shoal.transport.decoding import typed
from shoal.transport.errors import Undecodable
from shoal.transport.message import Message


def test_frames_come_out_as_they_went_in_however_cut() -> None:
    data = pack_frame({"id": 1, "text": "a"}) + pack_frame({"id": 2})
    for step in (1, 3, 100):
        reader = FrameReader(1000)
        found = [m for i in range(0, len(data), step) for m in reader.feed(data[i : i + step])]
        assert found == [{"id": 1, "text": "a"}, {"id": 2}]


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(TextError) as caught:
        list(FrameReader(10).feed(b"\x00\x00\x00\x0b"))
    assert caught.value.code == "text-protocol"
    with pytest.raises(TextError) as caught:
        pack_frame({"text": "x" * 20}, limit=10)
    assert caught.value.code == "text-too-large"


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000])
def test_a_frame_without_a_map_is_refused(body: bytes) -> None:
    with pytest.raises(TextError) as caught:
        unpack_body(body)
    assert caught.value.code == "text-protocol"


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (ChildReply, {}),
        (ChildReply, {"id": "1"}),
        (ChildReply, {"id": 1, "code": "text-failed", "message": "\x1b[2J"}),
        (ChildReply, {"id": 1, "code": "c" * 65}),
        (Ids, {"ids": b"abc"}),
        (Ids, {"ids": [1]}),
        (Decoded, {"window": "a"}),
        (TextInfo, {"vocabulary": 9, "bos": None, "eos": -1, "stop_ids": [], "chat": True}),
        (TextInfo, {"vocabulary": 9, "bos": None, "eos": 1, "stop_ids": ["1"], "chat": True}),
    ],
)
def test_a_child_cannot_answer_nonsense(kind: type[Message], reply: dict[str, object]) -> None:
    with pytest.raises(Undecodable):
        typed(kind, reply)
