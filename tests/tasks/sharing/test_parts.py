"""The small parts of shared engines: addresses, names, events, frames, counts, pulses, the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.sharing import counting, defaults, store
from shoal.tasks.sharing.address import parse_address
from shoal.tasks.sharing.errors import BadShare, EngineFailed, ShareError
from shoal.tasks.sharing.events import EventParser
from shoal.tasks.sharing.messages import (
    ConversationTurn,
    FailedAnswer,
    FrameKind,
    Frames,
    ShareAsk,
    ShareBody,
    pack_body,
    pack_frame,
    read_header,
    read_payload,
    text_frames,
)
from shoal.tasks.sharing.pulse import Pulse
from shoal.tasks.sharing.sharing import check_name, name_of
from shoal.tasks.sharing.store import OwnShare
from shoal.transport.host.real import RealHost
from shoal.transport.message import pack


@pytest.mark.parametrize(
    ("text", "url", "local"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("http://localhost:1234/v1/", "http://127.0.0.1:1234", True),
        ("http://[::1]:8000/", "http://[::1]:8000", True),
        ("http://192.168.1.7:8000/v1", "http://192.168.1.7:8000", False),
    ],
)
def test_an_address_is_that_of_one_machine(text: str, url: str, local: bool) -> None:
    found = parse_address(text)
    assert found.url == url and found.is_local == local and parse_address(found.url) == found


@pytest.mark.parametrize(
    "text",
    [
        "", "http://", "http://127.0.0.1", "https://127.0.0.1:1", "ftp://127.0.0.1:1",
        "http://example.org:80", "http://127.0.0.1:0", "http://127.0.0.1:70000",
        "http://127.0.0.1:1/admin", "http://127.0.0.1:1/?a=b", "http://a:b@127.0.0.1:1",
        "http://0.0.0.0:1", "http://224.0.0.1:1", "http://127.1:1", "http://0x7f000001:1",
        "http://127.0.0.1:1/#x", "http://[::1", "http://127.0.0.1:x", "\x1b[31m",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ShareError) as caught:
        parse_address(text)
    assert caught.value.code == "bad-address" and caught.value.hint
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("llama3.2:1b", "llama3.2-1b"), ("llama3.2:latest", "llama3.2"),
        ("meta-llama/Llama-3.2-1B", "Llama-3.2-1B"), ("/models/tiny.gguf", "tiny"),
        ("C:\\models\\tiny.gguf", "tiny"), ("///", "model"), ("x" * 100, "x" * 64),
        ("\u0430\u0435", "model"), ("hf.co/a/b:Q4_K_M", "b-Q4_K_M"),
    ],
)  # fmt: skip
def test_a_models_name_comes_from_the_engines(theirs: str, ours: str) -> None:
    assert name_of(theirs) == ours
    check_name(ours)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a@b", "t\u0456ny", "deadbeef", "x" * 65, "a:b"])
def test_the_rule_for_names_is_that_of_all_models(name: str) -> None:
    with pytest.raises(ShareError) as caught:
        check_name(name)
    assert caught.value.code == "bad-name"


@given(
    st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b and b"\r" not in b)), st.data()
)
def test_events_arrive_whole_in_any_pieces(lines: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(b": note\r\ndata: " + line + b"\r\n\r\n" for line in lines)
    events, found, at = EventParser(), list[bytes](), 0
    while at < len(wire):
        step = data.draw(st.integers(1, 30))
        found += events.feed(wire[at : at + step])
        at += step
    assert found == lines


def test_an_event_is_bounded_in_one_line_and_in_many() -> None:
    with pytest.raises(EngineFailed):
        EventParser().feed(b"x" * (defaults.EVENT_BYTES + 1))
    many = EventParser()
    with pytest.raises(EngineFailed):
        for _ in range(100):
            many.feed(b"data: " + b"x" * 1000 + b"\n")


@given(st.text(max_size=200), st.integers(1, 7))
def test_text_becomes_frames_and_text_again(text: str, step: int) -> None:
    wire = text_frames(text) + pack_frame(FrameKind.END, b"e")
    frames, found = Frames(), list[tuple[int, bytes]]()
    for at in range(0, len(wire), step):
        found += frames.feed(wire[at : at + step])
    assert found.pop() == (FrameKind.END, b"e")
    assert b"".join(payload for _, payload in found).decode() == text


def test_long_text_is_cut_into_frames_of_whole_characters() -> None:
    frames = Frames().feed(text_frames("\U0001f600" * 40_000))
    assert len(frames) == 3 and all(payload.decode() for _, payload in frames)
    assert Frames().feed(text_frames("a\ud800b")) == [(FrameKind.TEXT, b"a?b")]


def test_frames_are_bounded() -> None:
    with pytest.raises(BadShare):
        Frames().feed(b"\x02\xff\xff\xff\xff")


HEADER = {"model": "llama", "size": 10, "max_tokens": 5}


@pytest.mark.parametrize(
    "change",
    [
        {"model": ""}, {"model": "x" * 129}, {"size": 0}, {"size": 2**30}, {"max_tokens": 0},
        {"max_tokens": 2**40}, {"temperature": -1.0}, {"temperature": float("nan")},
        {"top_p": 0.0}, {"top_k": -1}, {"seed": -1}, {"seed": 2**64}, {"raw": 1},
    ],
)  # fmt: skip
def test_a_request_is_bounded(change: dict[str, object]) -> None:
    assert read_header(ShareAsk, HEADER).max_tokens == 5
    with pytest.raises(BadShare):
        read_header(ShareAsk, HEADER | change)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"prompt": ""}, {"prompt": "x" * (2**20 + 1)}, {"messages": [["tool", "x"]]},
        {"messages": [["user", "x"]] * 1025}, {"messages": [["user", 5]]},
        {"prompt": "x", "stop": ["y"] * 17}, {"prompt": "x", "stop": [""]},
        {"prompt": "x", "stop": ["y" * 257]},
    ],
)  # fmt: skip
def test_the_text_of_a_request_is_bounded(body: dict[str, object]) -> None:
    with pytest.raises(BadShare):
        read_payload(ShareBody, pack(body), defaults.BODY_BYTES)


def test_the_largest_body_fits() -> None:
    turns = tuple(ConversationTurn("user", "x" * 1024) for _ in range(1024))
    body = ShareBody(messages=turns, stop=("\U0001f600" * 256,) * 16)
    packed = pack_body(body)
    assert read_payload(ShareBody, packed, defaults.BODY_BYTES) == body


def test_a_failure_is_bounded() -> None:
    for fields in ({"code": "UP"}, {"code": ""}, {"code": "x" * 33}, {"code": "a\n"}):
        with pytest.raises(BadShare):
            read_payload(FailedAnswer, pack(fields))


def test_counts_are_plausible() -> None:
    assert counting.prompt_tokens(None, 40, 1) == 10
    assert counting.prompt_tokens(10**9, 40, 1) == 40 + 64 + 1024
    assert counting.prompt_tokens(0, 40, 1) == 1
    assert counting.answer_tokens(None, 40, 8, 100) == 8
    assert counting.answer_tokens(10**9, 40, 8, 100) == 100
    assert counting.answer_tokens(0, 1000, 8, 100) == 4


def test_a_pulse_withdraws_at_once_and_offers_again_ever_later() -> None:
    pulse, waits, now = Pulse(), list[float](), 0.0
    for _ in range(8):
        began = now
        while not pulse.offered:
            pulse.heard(now)
            now += 0 if pulse.offered else 1
        waits.append(now - began)
        now += 1
        pulse.missed(now, gone=True)
        assert not pulse.offered
    assert waits == [0, 5, 10, 20, 40, 60, 60, 60]
    while not pulse.offered:
        pulse.heard(now)
        now += 1
    now += defaults.FLAP
    pulse.missed(now, gone=True)
    pulse.heard(now + 1)
    assert pulse.offered  # it had been steady


def test_one_late_answer_withdraws_nothing() -> None:
    pulse = Pulse()
    pulse.heard(0)
    pulse.missed(5, gone=False)
    assert pulse.offered
    pulse.heard(6)
    pulse.missed(7, gone=False)
    assert pulse.offered
    pulse.missed(8, gone=False)
    assert not pulse.offered


@pytest.mark.trio
async def test_the_file_keeps_shares_and_damage_is_told(tmp_path: Path) -> None:
    host, path = RealHost(), tmp_path / "shares.json"
    assert await store.load(host, path) == []
    share = OwnShare("http://127.0.0.1:1", "m:1", "m-1", 2)
    await store.save(host, path, [share])
    assert await store.load(host, path) == [share] and path.stat().st_mode & 0o777 == 0o600
    for text in ("{", "[]", '{"shares": [{"url": "http://x:1", "model": "m", "name": "n"}]}',
                 "x" * (defaults.FILE_BYTES + 1)):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ShareError) as caught:
            await store.load(host, path)
        assert caught.value.code == "damaged-file" and str(path) in caught.value.message
