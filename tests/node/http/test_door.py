"""Only programs of this machine that know the token get past the headers."""

import pytest

from shoal.node.errors import ApiRefusal
from shoal.node.http.door import Door, check_body_headers

TOKEN = "shoal-0123456789abcdef"
HOST = (b"host", b"127.0.0.1:8462")
AUTHORIZATION = (b"authorization", f"Bearer {TOKEN}".encode())


def status(*headers: tuple[bytes, bytes]) -> int:
    """Return the status with which the headers are refused, or 200."""
    try:
        Door(TOKEN).check(headers)
    except ApiRefusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    "name", [b"127.0.0.1", b"localhost:8462", b"LOCALHOST", b"[::1]:8462", b"[::1]", b"127.0.0.1:9"]
)
def test_loopback_hosts(name: bytes) -> None:
    assert status((b"host", name), AUTHORIZATION) == 200


@pytest.mark.parametrize(
    "name",
    [b"", b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example", b"0.0.0.0",
     b"192.168.1.2:8462", b"127.0.0.1:8462@evil", b"localhost:", b"[::2]", b"127.0.0.1 "],
)  # fmt: skip
def test_other_hosts_are_refused(name: bytes) -> None:
    assert status((b"host", name), AUTHORIZATION) == 421


def test_one_host_is_needed() -> None:
    assert status(AUTHORIZATION) == 421
    assert status(HOST, (b"host", b"localhost"), AUTHORIZATION) == 421


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"null", b"http://localhost:3000", b"https://127.0.0.1:8462", b"",
     b"file://", b"http://127.0.0.1"],
)  # fmt: skip
def test_foreign_pages_are_refused(origin: bytes) -> None:
    assert status(HOST, (b"origin", origin), AUTHORIZATION) == 403


def test_the_own_origin_passes_once() -> None:
    own = (b"origin", b"http://127.0.0.1:8462")
    assert status(HOST, own, AUTHORIZATION) == 200
    assert status(HOST, own, own, AUTHORIZATION) == 403


@pytest.mark.parametrize(
    "value",
    [b"", b"Bearer", b"Bearer ", b"Bearer wrong", f"Basic {TOKEN}".encode(), TOKEN.encode(),
     f"Bearer {TOKEN}x".encode(), f"Bearer {TOKEN[:-1]}".encode(), "Bearer tökèn".encode()],
)  # fmt: skip
def test_a_wrong_token_is_refused(value: bytes) -> None:
    assert status(HOST, (b"authorization", value)) == 401


def test_one_token_is_needed() -> None:
    assert status(HOST) == 401
    assert status(HOST, AUTHORIZATION, AUTHORIZATION) == 401
    assert status(HOST, (b"authorization", f"bearer  {TOKEN}".encode())) == 200


def test_the_host_is_checked_before_the_token() -> None:
    """A page that has rebound its name learns nothing about the token."""
    assert status((b"host", b"evil.example")) == 421


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], 415),
        ([(b"content-type", b"text/plain")], 415),
        ([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], 415),
        ([(b"content-type", b"application/json"), (b"content-length", b"101")], 413),
        ([(b"content-type", b"application/json"), (b"content-length", b"9" * 5000)], 413),
    ],
)
def test_bodies_that_are_refused_unread(headers: list[tuple[bytes, bytes]], expected: int) -> None:
    with pytest.raises(ApiRefusal) as raised:
        check_body_headers(headers, 100)
    assert raised.value.status == expected


def test_bodies_that_are_read() -> None:
    check_body_headers(
        [(b"content-type", b"Application/JSON; charset=utf-8"), (b"content-length", b"100")], 100
    )
