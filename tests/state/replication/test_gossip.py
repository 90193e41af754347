"""Messages survive encoding unchanged, and anything else is refused."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest

from shoal.state import defaults
from shoal.state.errors import BadMessage
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import FORKED, Head
from shoal.state.replication.gossip import (
    Compare,
    Compared,
    HeadsQuestion,
    HeadsReply,
    Pulled,
    Told,
    decode_heads,
    encode_heads,
    told,
)

KEY, MARK = b"k" * 32, b"m" * 16
PLOT = ("shards", 5)


def test_all_messages_survive_encoding() -> None:
    heads = [told(KEY, PLOT, Head(3, 4, b"h" * 32)), told(KEY, ("jobs", 0), None)]
    heads.append(told(KEY, ("jobs", 0), FORKED))
    assert decode_heads(encode_heads(heads)) == heads
    for message in (Compare(MARK), Compare(MARK, {}), Compare(MARK, {PLOT: MARK})):
        assert Compare.decode(message.encode()) == message
    for answer in (
        Compared({}),
        Compared({PLOT: MARK}),
        Compared({PLOT: MARK}, {PLOT: {0: MARK, 255: MARK}}),
    ):
        assert Compared.decode(answer.encode()) == answer
    for keeps in (None, frozenset[Plot](), frozenset({PLOT, ("shards", 9), ("jobs", 0)})):
        ask_all, none = Compare(MARK, keeps=keeps), Compared({}, keeps=keeps)
        assert Compare.decode(ask_all.encode()) == ask_all
        assert Compared.decode(none.encode()) == none
    ask = HeadsQuestion({PLOT: b"\x00\x07"}, KEY)
    assert HeadsQuestion.decode(ask.encode()) == ask
    assert HeadsReply.decode(HeadsReply(heads, more=True).encode()) == HeadsReply(heads, more=True)
    pulled = Pulled([(b"one",), (b"two", b"three")], more=True)
    assert Pulled.decode(pulled.encode()) == pulled


def test_kinds_of_later_versions_are_skipped() -> None:
    later = Told(KEY, "dreams", 0, 1, 1, MARK)
    part = Told(KEY, "member", 3, 1, 1, MARK)
    mine = Told(KEY, "member", 0, 1, 1, MARK)
    assert decode_heads(encode_heads([later, part, mine])) == [mine]
    assert Compare.decode(Compare(MARK, {("dreams", 0): MARK, PLOT: MARK}).encode()).roots == {
        PLOT: MARK
    }
    keeps = frozenset({("dreams", 0), ("member", 7), PLOT})
    assert Compare.decode(Compare(MARK, keeps=keeps).encode()).keeps == frozenset((PLOT,))


def test_a_head_is_compared_by_all_fields() -> None:
    head = Head(3, 4, b"h" * 32)
    assert told(KEY, PLOT, head).same(head)
    assert not told(KEY, PLOT, head).same(Head(3, 4, b"i" * 32))
    assert not told(KEY, PLOT, head).same(None)
    assert told(KEY, PLOT, None).same(None)


DECODERS = (
    decode_heads,
    Compare.decode,
    Compared.decode,
    HeadsQuestion.decode,
    HeadsReply.decode,
    Pulled.decode,
)
BAD: list[Any] = [
    None, 7, "text", {}, [], [[]], [7], [MARK], [MARK, 7], [MARK, [[]]], [b"short", None],
    [[KEY, "member", 0, 1, 1]], [[KEY, "member", 0, 1, -1, MARK]],
    [[KEY, "member", 0, 1.0, 1, MARK]],
    [[KEY, "member", 0, True, 1, MARK]], [["k" * 32, "member", 0, 1, 1, MARK]],
    [[KEY, b"member", 0, 1, 1, MARK]], [[KEY, "member", 0, 2**60, 1, MARK]],
    [[KEY, "member", 0, 1, 1, MARK + b"x"]], [[KEY, "m" * 40, 0, 1, 1, MARK]],
    [True, [[b""]]], [True, [[]]], [True, [[b"a", b"b", b"c"]]], [True, [[["deep"]]]], [1, []],
    [True, [["member", 0, MARK, b"odd"]]], [[["member", 0, "numbers"]], b""], [[], b"k" * 33],
]  # fmt: skip


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_other_forms_are_refused(value: Any) -> None:
    payload = msgpack.packb(value)
    for decode in DECODERS:
        if decode is decode_heads and value == []:
            continue
        with pytest.raises(BadMessage):
            decode(payload)


def test_truncated_and_extended_messages_are_refused() -> None:
    messages: dict[Callable[[bytes], object], bytes] = {
        decode_heads: encode_heads([told(KEY, PLOT, None)]),
        Compare.decode: Compare(MARK, {PLOT: MARK}, frozenset((PLOT,))).encode(),
        Compared.decode: Compared({PLOT: MARK}, {PLOT: {1: MARK}}).encode(),
        HeadsQuestion.decode: HeadsQuestion({PLOT: b"\x01"}).encode(),
        HeadsReply.decode: HeadsReply([told(KEY, PLOT, None)]).encode(),
        Pulled.decode: Pulled([(b"one",)]).encode(),
    }
    for decode, payload in messages.items():
        decode(payload)
        with pytest.raises(BadMessage):
            decode(payload + b"\x00")
        for size in range(len(payload)):
            with pytest.raises(BadMessage):
                decode(payload[:size])


def test_any_bytes_are_at_most_refused() -> None:
    random = Random(5)
    seeds = [Compared({PLOT: MARK}, {PLOT: {1: MARK}}).encode(), Pulled([(b"a", b"b")]).encode()]
    for _ in range(3_000):
        payload = bytearray(random.choice(seeds))
        for _ in range(random.randrange(1, 4)):
            payload[random.randrange(len(payload))] = random.randrange(256)
        for decode in DECODERS:
            try:
                decode(bytes(payload))
            except BadMessage:
                continue


def test_a_message_is_bounded_before_it_is_read() -> None:
    with pytest.raises(BadMessage, match="at most"):
        decode_heads(bytes(defaults.NEWS_BYTES + 1))
    many = [Told(KEY, "member", 0, 1, 1, MARK)] * (defaults.NEWS_HEADS + 1)
    with pytest.raises(BadMessage):
        decode_heads(encode_heads(many))


def test_a_truncated_reply_is_continued_from_its_end() -> None:
    ask = HeadsQuestion({("jobs", 0): b"\x01", PLOT: b"\x02\x03\x04"})
    rest = ask.rest(Told(KEY, *PLOT, 1, 1, MARK), 3)
    assert rest == HeadsQuestion({PLOT: b"\x03\x04"}, KEY)
    assert ask.rest(Told(KEY, "usage", 0, 1, 1, MARK), 3).buckets == {}
