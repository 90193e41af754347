"""Searches for a gateway's description, and whose answers count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.netsim.nat.portmap.upnp import IgdDevice, parse_search, search_answers
from shoal.transport.nat.portmap.http import Url
from shoal.transport.nat.portmap.igd import TARGETS, decode_answer, encode_search

GATEWAY = "192.168.1.1"
DEVICE = IgdDevice("5a34308c-1a2c-4546-ac5d-000000000001", GATEWAY, 2)


def answer(location: str = f"http://{GATEWAY}:5000/rootDesc.xml", st_: str = TARGETS[1]) -> bytes:
    return f"HTTP/1.1 200 OK\r\nST: {st_}\r\nLOCATION: {location}\r\n\r\n".encode()


def test_a_search_is_understood_and_its_answer_too() -> None:
    search = parse_search(encode_search(TARGETS[1]))
    assert search is not None and (search.target, search.spread) == (TARGETS[1], 2.0)
    (said,) = search_answers(DEVICE, search)
    assert decode_answer(said, GATEWAY) == Url(GATEWAY, 5000, "/rootDesc.xml")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"NOTIFY * HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 404 Not\r\n\r\n",
        answer("http://203.0.113.9:80/x"),  # elsewhere: a request made in our name
        answer("http://192.168.1.20:80/x"),
        answer("http://192.168.1.1.evil.example/x"),
        answer("gopher://192.168.1.1/x"),
        answer(st_="urn:schemas-upnp-org:device:MediaServer:1"),
        answer() + bytes(2048),
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    assert decode_answer(data, GATEWAY) is None


@given(st.binary(max_size=200))
def test_anything_is_read_without_harm(data: bytes) -> None:
    decode_answer(data, GATEWAY)
    decode_answer(b"HTTP/1.1 200 OK\r\n" + data, GATEWAY)
