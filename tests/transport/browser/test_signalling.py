"""The posted document and its answer."""

import json
from base64 import b64encode
from typing import Any

import pytest

from shoal.transport.browser import defaults
from shoal.transport.browser.signalling import BadRequest, encode_answer, parse_join
from tests.transport.browser.offers import offer_of

OFFER = offer_of(bytes(32))
NONCE = b64encode(bytes(32)).decode()
RIGHT: dict[str, Any] = {"v": 1, "offer": OFFER, "nonce": NONCE}


def test_a_join_is_read() -> None:
    found = parse_join(json.dumps({**RIGHT, "later": "versions may add"}).encode())
    assert found.nonce == bytes(32) and found.offer.ufrag == "visi"


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": None},
        {"offer": 5},
        {"offer": "v=0"},
        {"offer": "x" * 8193},
        {"nonce": NONCE[:-4]},
        {"nonce": NONCE + "AAAA"},
        {"nonce": "!" * 44},
        {"nonce": "é" * 44},
        {"nonce": None},
        {"nonce": [0] * 32},
    ],
)
def test_what_is_wrong_with_a_part_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse_join(json.dumps({**RIGHT, **change}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * defaults.BODY_BYTES,
        b'{"a":' * 3000,
        b" " * 1_048_576,
        b"NaN",
        b"1" * 10_000,
    ],
)
def test_rubbish_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_join(body)


def test_the_answer_is_json() -> None:
    found = json.loads(encode_answer("v=0", bytes(32), b"k" * 32))
    assert found == {"v": 1, "answer": "v=0", "nonce": NONCE, "key": b64encode(b"k" * 32).decode()}
