"""Messages between members: one form, bounded before they are read."""

import tracemalloc

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.membermessages import read_digest, read_find, read_links, read_names, read_told
from shoal.state.roster import Offer
from shoal.transport.place import Nearness

NONCE = bytes(range(defaults.NONCE_BYTES))


def test_a_message_of_empty_lists_is_refused_unread() -> None:
    """8 MiB of them were 600 MB and two seconds of the loop; also where they lie deeper."""
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


def test_what_a_peer_tells_is_clamped() -> None:
    assert read_told(msgpack.packb([[9, 3, b"sealed"]])) == [(Nearness.LOOPBACK, 3, b"sealed")]
    assert read_digest(msgpack.packb({"a": [7, -1, 3]})) == {"a": Offer(7, Nearness.PUBLIC, 3)}
    names = [f"{number}" for number in range(100)]
    assert read_names(msgpack.packb(["0", *names])) == names[: defaults.BATCH - 1]
    with pytest.raises(BadRecord):
        read_names(msgpack.packb(["0", 5]))


def test_lists_of_links_and_questions() -> None:
    assert read_links(msgpack.packb([True, ["a"], ["b"], "later"])) == (True, ["a"], ["b"])
    assert read_find(msgpack.packb(["a", NONCE, False])) == ("a", NONCE, False)


@pytest.mark.parametrize(
    "value",
    [None, [], {}, [True], [1, [], []], [True, "a", []], [True, [], [b"a"]], [True, [["a"]], []]],
)
def test_a_list_of_links_has_one_form(value: object) -> None:
    with pytest.raises(BadRecord):
        read_links(msgpack.packb(value))


def test_a_list_of_links_is_bounded() -> None:
    names = ["x" * 52] * (defaults.LINKS_BYTES // 54)
    assert len(read_links(msgpack.packb([True, names, []]))[1]) == len(names)
    with pytest.raises(BadRecord):
        read_links(msgpack.packb([True, names * 2, []]))


@pytest.mark.parametrize(
    "value", [[], ["a"], ["a", NONCE], ["a", NONCE + b"x", True], [1, NONCE, True], ["a", NONCE, 1]]
)
def test_a_question_for_a_member_has_one_form(value: object) -> None:
    with pytest.raises(BadRecord):
        read_find(msgpack.packb(value))


def test_names_that_many_peers_tell_are_kept_once() -> None:
    told = msgpack.packb([True, ["12D3KooW" + "x" * 44], []])
    assert read_links(told)[1][0] is read_links(told)[1][0]
