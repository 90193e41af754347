"""Two nodes have equal digests exactly for the plots with equal heads."""

from hashlib import sha256

from shoal.state.feeds.digest import Digest, HeadTree, bucket_of
from shoal.state.feeds.entry import Head

PLOTS = (("member", 0), ("shards", 3))


def head(number: int) -> Head:
    return Head(1, number, sha256(bytes([number])).digest())


def key(number: int) -> bytes:
    return sha256(number.to_bytes(4)).digest()


def filled(order: range) -> Digest:
    digest = Digest()
    for number in order:
        digest.set(key(number), PLOTS[number % 2], head(number % 7))
    return digest


def test_the_order_of_changes_does_not_matter() -> None:
    one, other = filled(range(200)), filled(range(199, -1, -1))
    assert one.top() == other.top()
    other.set(key(3), PLOTS[1], head(9))
    assert one.top() != other.top()
    assert list(one.roots()) == list(other.roots()) == sorted(PLOTS)
    assert one.roots()[PLOTS[0]] == other.roots()[PLOTS[0]]
    mine, theirs = one.tree(PLOTS[1]).buckets(), other.tree(PLOTS[1]).buckets()
    assert [n for n in mine if mine[n] != theirs[n]] == [bucket_of(key(3))]
    other.set(key(3), PLOTS[1], head(3))
    assert one.top() == other.top()


def test_a_dropped_feed_leaves_no_trace() -> None:
    digest = filled(range(20))
    for number in range(20):
        digest.set(key(number), PLOTS[number % 2], None)
        digest.set(key(number), ("jobs", 0), None)
    assert digest.roots() == {}
    assert digest.top() == Digest().top()
    assert digest.tree(PLOTS[0]).root() == HeadTree().root()


def test_heads_are_in_their_buckets() -> None:
    digest = filled(range(50))
    assert digest.head(key(4), PLOTS[0]) == head(4)
    assert digest.head(key(4), PLOTS[1]) is None
    assert key(4) in digest.tree(PLOTS[0]).heads(bucket_of(key(4)))


def test_a_digest_of_selected_authors() -> None:
    one, other = filled(range(40)), filled(range(60))
    both = {key(number) for number in range(40)}
    assert one.top() != other.top()
    assert one.of(both).top() == other.of(both).top() == one.top()


def test_each_field_of_a_head_changes_the_root() -> None:
    tops = set()
    for changed in (Head(1, 1, b"a" * 32), Head(2, 1, b"a" * 32), Head(1, 2, b"a" * 32),
                    Head(1, 1, b"b" * 32)):  # fmt: skip
        digest = Digest()
        digest.set(key(1), PLOTS[0], changed)
        tops.add(digest.top())
    assert len(tops) == 4
