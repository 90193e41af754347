"""Membership messages have one valid form, and are bounded before they are read."""

import tracemalloc

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.membership.messages import (
    encode_digest,
    encode_find,
    encode_found,
    encode_tags,
    read_digest,
    read_find,
    read_found,
    read_gather,
    read_gathered,
    read_links,
    read_tags,
    read_told,
)
from shoal.state.membership.roster import RecordOffer
from shoal.transport.identity import PeerId
from shoal.transport.networks import Nearness

NONCE = bytes(range(defaults.NONCE_BYTES))
PROOF = bytes(range(64))


def test_a_message_of_empty_lists_is_refused_before_it_is_read() -> None:
    """8 MiB of them took 600 MB and stalled the loop for two seconds, also when nested deeper."""
    lists = b"\xdd" + (2**22).to_bytes(4) + b"\x90" * 2**22
    for payload in (
        lists,
        b"\x91\x93\x01\x00" + lists,
        b"\x91\x93\x01" + lists,
        b"\x91\x93" + lists,
        b"\x91" + lists,
    ):
        tracemalloc.start()
        with pytest.raises(BadRecord):
            read_told(payload)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * len(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x91",
        b"\x91\x92\x01",
        b"\x91\x94\x01\x00\xc4\x00\x01",
        b"\x91\x93\x01\xff\xc4\x00",
        b"\x91\x92\x01\xc4\x00",
        b"\x90\x90",
        b"\x91\x91\x01",
    ],
)
def test_a_message_of_records_has_one_form(payload: bytes) -> None:
    with pytest.raises(BadRecord):
        read_told(payload)


def test_values_from_a_peer_are_clamped() -> None:
    assert read_told(msgpack.packb([[9, 3, b"sealed"]])) == [(Nearness.LOOPBACK, 3, b"sealed")]


def test_a_digest_and_a_request_for_records() -> None:
    tags = [bytes([number]) * defaults.TAG_BYTES for number in range(defaults.BATCH)]
    offers = {tag: RecordOffer(2**53 - 1, Nearness.LOOPBACK, 3) for tag in tags}
    assert read_digest(encode_digest(offers)) == offers
    assert len(encode_digest(offers)) < 20 * len(offers)
    assert read_tags(encode_tags(tags)) == tags and read_tags(b"") == []
    assert read_tags(encode_tags([tags[0]] * 9)) == tags[:1], "each is answered once"
    old = encode_digest({tags[0]: RecordOffer(1, Nearness.PUBLIC, 10**9)})
    assert read_digest(old)[tags[0]].age == defaults.MAX_AGE
    near = old[:-3] + b"\xff" + old[-2:]
    assert read_digest(near)[tags[0]].reach == Nearness.LOOPBACK


@pytest.mark.parametrize("size", [1, 7, 18, 20])
def test_a_digest_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadRecord):
        read_digest(bytes(size))
    with pytest.raises(BadRecord):
        read_tags(bytes(size))


def test_messages_about_too_many_authors_are_refused() -> None:
    size = len(encode_digest({bytes(defaults.TAG_BYTES): RecordOffer(1, Nearness.PUBLIC, 0)}))
    read_digest(bytes(size * defaults.MEMBERS))
    read_tags(bytes(defaults.TAG_BYTES * defaults.BATCH))
    with pytest.raises(BadRecord):
        read_digest(bytes(size * (defaults.MEMBERS + 1)))
    with pytest.raises(BadRecord):
        read_tags(bytes(defaults.TAG_BYTES * (defaults.BATCH + 1)))


def test_reports_on_links_and_requests_are_read() -> None:
    assert read_links(msgpack.packb([True, ["a"], ["b"], "later"])) == (True, ["a"], ["b"])
    peers = [PeerId("a"), PeerId("b")]
    assert read_find(encode_find(7, NONCE, False, peers)) == (7, NONCE, False, peers)
    assert read_found(encode_found(7, 1, PROOF)) == (7, 1, PROOF)


@pytest.mark.parametrize(
    "value",
    [None, [], {}, [True], [1, [], []], [True, "a", []], [True, [], [b"a"]], [True, [["a"]], []]],
)
def test_a_malformed_report_on_links_is_refused(value: object) -> None:
    with pytest.raises(BadRecord):
        read_links(msgpack.packb(value))


def test_a_report_on_links_is_bounded() -> None:
    names = ["x" * 52] * (defaults.LINKS_BYTES // 54)
    assert len(read_links(msgpack.packb([True, names, []]))[1]) == len(names)
    with pytest.raises(BadRecord):
        read_links(msgpack.packb([True, names * 2, []]))


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, NONCE, True],
        ["1", NONCE, True, ["a"]],
        [-1, NONCE, True, ["a"]],
        [2**32, NONCE, True, ["a"]],
        [1, NONCE + b"x", True, ["a"]],
        [1, NONCE, 1, ["a"]],
        [1, NONCE, True, "a"],
        [1, NONCE, True, []],
        [1, NONCE, True, ["a", 1]],
        [1, NONCE, True, ["a"] * (defaults.ASKED_FOR + 1)],
    ],
)
def test_a_malformed_request_for_a_member_is_refused(value: object) -> None:
    with pytest.raises(BadRecord):
        read_find(msgpack.packb(value))


@pytest.mark.parametrize("payload", [b"", PROOF, encode_found(1, 1, PROOF) + b"x"])
def test_a_malformed_reply_about_a_member_is_refused(payload: bytes) -> None:
    with pytest.raises(BadRecord):
        read_found(payload)


def test_requests_for_many_members_are_read() -> None:
    assert read_gather(msgpack.packb([NONCE, ["a", "b"], "later"])) == (NONCE, ["a", "b"])
    assert read_gathered(msgpack.packb([[NONCE], [b"", bytes(64)]])) == ([NONCE], [b"", bytes(64)])


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [NONCE],
        [NONCE[1:], ["a"]],
        [NONCE, "a"],
        [NONCE, [1]],
        [NONCE, ["x" * (defaults.NAME_BYTES + 1)]],
        [NONCE, ["a"] * (defaults.ASKED_FOR + 1)],
    ],
)
def test_a_malformed_request_for_many_members_is_refused(value: object) -> None:
    with pytest.raises(BadRecord):
        read_gather(msgpack.packb(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [[]],
        [[NONCE[1:]], []],
        [["a"], []],
        [[NONCE] * (defaults.PATH + 1), []],
        [[], [bytes(63)]],
        [[], ["a"]],
        [[], "a"],
    ],
)
def test_a_malformed_reply_about_many_members_is_refused(value: object) -> None:
    with pytest.raises(BadRecord):
        read_gathered(msgpack.packb(value))


def test_names_from_many_peers_are_stored_once() -> None:
    told = msgpack.packb([True, ["12D3KooW" + "x" * 44], []])
    assert read_links(told)[1][0] is read_links(told)[1][0]
