"""Encoding of offers: typed and bounded."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import msgpack
import pytest

from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.offer import Counting, PunchOffer, decode, encode
from shoal.transport.nat.punch.predict import NatProfile
from tests.transport.nat.punch.street import APD, EI

OFFER = PunchOffer(
    b"12345678",
    2,
    b"s" * 20,
    NatProfile(APD, EI, counts=True),
    [Candidate(("11.0.0.1", 4001), CandidateKind.OBSERVED, CandidateTransport.UDP)],
    [("11.0.0.1", 5000), None, ("11.0.0.1", 5001)],
    Counting("11.0.0.1", 5000, -2),
    0.12,
    ("11.0.0.1", 5002),
)


def test_offers_round_trip() -> None:
    header = msgpack.unpackb(msgpack.packb(encode(OFFER)))
    assert decode(header) == OFFER
    assert OFFER.places == [("11.0.0.1", 5000), ("11.0.0.1", 5001)]


def test_a_busy_side_is_marked() -> None:
    busy = replace(OFFER, busy=True, thrifty=True)
    assert decode(encode(busy)) == busy
    assert decode(encode(OFFER) | {"w": 1}) is None


def test_the_largest_offer_is_small() -> None:
    ip, kind = "2600:1111:2222:3333:4444:5555:6666:7777", CandidateKind.OBSERVED
    many = [Candidate((ip, p), kind, CandidateTransport.UDP)
            for p in range(60000, 60100)]  # fmt: skip
    full = PunchOffer(
        b"12345678", 3, b"s" * 20, NatProfile(), many, [("2600:1111::7777", 60000)] * 7
    )
    assert len(msgpack.packb(encode(full))) < 1600


@pytest.mark.parametrize(
    "changed",
    [
        {"a": b"1234567"},
        {"a": "12345678"},
        {"k": b"short"},
        {"k": None},
        {"r": 0},
        {"r": 256},
        {"r": True},
        {"r": "1"},
        {"n": None},
        {"n": ["endpoint-independent"]},
        {"n": ["whatever", "unknown", True, True, True]},
        {"n": [[], "unknown", True, True, True]},
        {"n": ["unknown", "unknown", 1, True, True]},
        {"c": None},
        {"c": [["11.0.0.1", 4001, "observed", "udp"]] * 10_000},
        {"t": -1},
        {"t": nan},
        {"t": inf},
        {"t": "soon"},
        {"t": True},
        {"t": 1 << 64},
        {"b": [["11.0.0.1", 4001]] * 8},
        {"b": [["11.0.0.1"]]},
        {"b": [0]},
        {"b": {}},
        {"s": []},
        {"s": ["11.0.0.1", 4001, 0]},
        {"s": ["11.0.0.1", 4001, 17]},
        {"s": ["11.0.0.1", 4001, 1.5]},
        {"s": ["nowhere", 4001, 1]},
        {"s": None},
        {"f": None},
        {"f": ["11.0.0.1"]},
        {"f": ["11.0.0.1", 80]},
        {"f": ["11.0.0.1", 65536]},
        {"f": ["nowhere", 4001]},
    ],
)
def test_malformed_offers_are_none(changed: dict[str, Any]) -> None:
    assert decode(encode(OFFER) | changed) is None


@pytest.mark.parametrize("name", ["a", "r", "k", "n", "c", "t"])
def test_incomplete_offers_are_none(name: str) -> None:
    header = encode(OFFER)
    del header[name]
    assert decode(header) is None
