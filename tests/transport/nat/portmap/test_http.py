"""A router's HTTP: whole answers in any pieces, and none beyond the bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.transport.nat.portmap.defaults import BODY_BYTES, HEAD_BYTES
from shoal.transport.nat.portmap.http import (
    Bad,
    GatewayResponse,
    ResponseReader,
    Url,
    encode_request,
    parse_url,
    resolve_url,
)

BASE = Url("192.168.1.1", 5000, "/desc/root.xml")
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
)
CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSED = b"HTTP/1.0 200\r\nServer: x\r\n\r\nhello"


def read(data: bytes, size: int = 1 << 20) -> GatewayResponse | Bad:
    reader = ResponseReader()
    for at in range(0, len(data), size):
        found = reader.feed(data[at : at + size])
        if found is not None:
            return found
    return reader.end()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("data", "status"), [(LENGTH, 200), (CHUNKED, 500), (CLOSED, 200)])
def test_whole_answers_in_pieces(data: bytes, status: int, size: int) -> None:
    assert read(data, size) == GatewayResponse(status, b"hello")


def test_an_empty_body() -> None:
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") == GatewayResponse(200, b"")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", Bad.CUT_OFF),
        (LENGTH[:-1], Bad.CUT_OFF),
        (CHUNKED[:-7], Bad.CUT_OFF),
        (b"HTTP/1.1 200 OK\r\n", Bad.CUT_OFF),
        (b"SSH-2.0-dropbear\r\n\r\n\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 20 OK\r\n\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 19 + b"\r\n\r\n", Bad.TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", Bad.TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_BYTES, Bad.TOO_LARGE),
        (CLOSED + bytes(BODY_BYTES), Bad.TOO_LARGE),
        (CHUNK + b"fffff\r\n" + bytes(BODY_BYTES + 1), Bad.TOO_LARGE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", Bad.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", Bad.MALFORMED),
        (CHUNK + b"1;" + b"x" * HEAD_BYTES, Bad.TOO_LARGE),
    ],
)
def test_what_is_refused(data: bytes, why: Bad) -> None:
    assert read(data) is why


@pytest.mark.parametrize("bounded", [True, False])
def test_an_endless_head_or_body_is_cut_where_its_bound_is(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The second case is the twin, which buffers everything."""
    for name in ("HEAD_BYTES", "BODY_BYTES") if not bounded else ():
        monkeypatch.setattr(f"shoal.transport.nat.portmap.http.{name}", 10**9)
    for first, bound in ((b"HTTP/1.1 200 OK\r\nX: ", HEAD_BYTES), (CLOSED, BODY_BYTES)):
        reader, sent = ResponseReader(), 0
        reader.feed(first)
        while sent <= 2 * BODY_BYTES and reader.feed(b"y" * 4096) is None:
            sent += 4096
        assert (sent <= bound) is bounded


@given(st.binary(max_size=200))
def test_anything_is_read_without_harm(data: bytes) -> None:
    read(data)
    read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data, 3)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://192.168.1.1:5000/rootDesc.xml", Url("192.168.1.1", 5000, "/rootDesc.xml")),
        ("HTTP://192.168.1.1", Url("192.168.1.1", 80, "/")),
        ("http://router.lan/x", None),
        ("http://192.168.1.1:0/x", None),
        ("http://192.168.1.1:65536/x", None),
        ("http://192.168.1.999/x", None),
        ("http://user@192.168.1.1/x", None),
        ("http://192.168.1.1@203.0.113.9/x", None),
        ("https://192.168.1.1/x", None),
        ("file:///etc/passwd", None),
        ("http://192.168.1.1/a b", None),
        ("http://192.168.1.1/a\r\nX: y", None),
        ("http://192.168.1.1/" + "x" * 600, None),
        ("http://٣.1.1.1/", None),
    ],
)
def test_urls(text: str, url: Url | None) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/ctl", "/ctl"),
        ("ctl/IPConn", "/desc/ctl/IPConn"),
        ("http://192.168.1.1:5000/abs", "/abs"),
        ("//203.0.113.9/x", None),
        ("", None),
        ("a b", None),
        ("/x\r\nHost: y", None),
        ("/" + "x" * 600, None),
    ],
)
def test_references(text: str, path: str | None) -> None:
    found = resolve_url(text, BASE)
    assert (found.path if found else None) == path


def test_requests() -> None:
    get = encode_request(BASE, {})
    assert get.startswith(b"GET /desc/root.xml HTTP/1.1\r\nHost: 192.168.1.1:5000\r\n")
    assert get.endswith(b"\r\n\r\n") and b"Content-Length" not in get
    post = encode_request(BASE, {"X": "y"}, b"body")
    assert post.startswith(b"POST ") and b"X: y\r\nContent-Length: 4\r\n\r\nbody" in post
