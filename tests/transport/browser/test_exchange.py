"""One request, one answer, and every bound on the way."""

import pytest

from shoal.transport.browser import defaults
from shoal.transport.browser.exchange import HttpExchange, HttpRefusal, HttpRequest, HttpResponse
from tests.transport.browser.requests import http


def test_a_request_comes_in_pieces() -> None:
    exchange = HttpExchange()
    data = http("POST", "/webrtc?x=1", "localhost:1", b"body", X_Other="y")
    found: HttpRequest | None = None
    for at in range(len(data)):
        assert found is None
        found = exchange.receive(data[at : at + 1])
    assert found is not None
    assert (found.method, found.target, found.body) == ("POST", "/webrtc?x=1", b"body")
    assert found.headers["host"] == "localhost:1" and found.headers["x-other"] == "y"


def test_an_answer_ends_the_connection() -> None:
    exchange = HttpExchange()
    exchange.receive(http("GET", "/", "localhost:1"))
    said = exchange.respond(HttpResponse(200, b"page", {"Content-Type": "text/html"}))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == b"page"
    assert b"Connection: close" in head and b"Content-Length: 4" in head
    assert exchange.respond(HttpResponse(200)) == b""


@pytest.mark.parametrize("status", [200, 404])
def test_a_response_to_head_has_no_body(status: int) -> None:
    exchange = HttpExchange()
    exchange.receive(http("HEAD", "/", "localhost:1"))
    said = exchange.respond(HttpResponse(status, b"page"))
    assert b"Content-Length: 4\r\n" in said and said.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "A"])
@pytest.mark.parametrize("upgrade", ["", "websocket"])
@pytest.mark.parametrize("status", [200, 204, 403, 503])
def test_no_request_is_without_an_answer(method: str, upgrade: str, status: int) -> None:
    exchange = HttpExchange()
    data = http(method, "/", "localhost:1", Connection="upgrade", Upgrade=upgrade)
    assert exchange.receive(data) is not None
    said = exchange.respond(HttpResponse(status, b"" if status == 204 else b"page"))
    assert said.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),  # TLS
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * defaults.REQUEST_HEAD_BYTES, 400),
        (b"GET /" + b"a" * defaults.REQUEST_HEAD_BYTES, 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 18 + b"\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 5,
            413,
        ),
    ],
)
def test_what_breaks_a_bound_is_refused(data: bytes, status: int) -> None:
    exchange = HttpExchange()
    with pytest.raises(HttpRefusal) as caught:
        for at in range(0, len(data), 1000):
            exchange.receive(data[at : at + 1000])
    assert caught.value.status in (status, 431)
    assert exchange.respond(HttpResponse(caught.value.status)).startswith(b"HTTP/1.1 ")


def test_a_browser_that_leaves_early() -> None:
    exchange = HttpExchange()
    assert exchange.receive(b"GET / HTTP/1.1\r\nHost:") is None
    with pytest.raises(HttpRefusal):
        exchange.receive(b"")


def test_silence_is_no_request_and_needs_no_answer() -> None:
    exchange = HttpExchange()
    with pytest.raises(HttpRefusal):
        exchange.receive(b"")
