"""tree: a blob has exactly one root, and trees of a wrong shape are refused."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.content import tree
from shoal.dht.content.tree import (
    NODE_FANOUT,
    TOP_FANOUT,
    build,
    digest_of,
    read_node,
    read_top,
    whole,
)
from shoal.dht.defaults import CHUNK, CHUNKS_LIMIT
from shoal.dht.errors import ModelError


def leaves(count: int) -> list[str]:
    return [hashlib.sha256(n.to_bytes(4)).hexdigest() for n in range(count)]


def read(root: str, nodes: dict[str, bytes]) -> tree.Tree:
    top = read_top(root, nodes[root])
    inner = top.children if top.depth == 2 else ()
    return whole(top, [read_node(top, n, nodes[digest]) for n, digest in enumerate(inner)])


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 7 * CHUNK, TOP_FANOUT * CHUNK])
def test_small_blobs_have_only_a_top_node(size: int) -> None:
    digests = leaves(-(-size // CHUNK))
    made, nodes = build(size, digests)
    assert set(nodes) == {made.root}
    assert len(nodes[made.root]) <= CHUNK
    assert read(made.root, nodes) == made
    assert sum(part for _, part in made.pieces()) == size


@pytest.mark.parametrize("count", [TOP_FANOUT + 1, NODE_FANOUT, NODE_FANOUT + 1, 3 * NODE_FANOUT])
def test_large_blobs_have_nodes_in_between(count: int) -> None:
    size = count * CHUNK - 5
    made, nodes = build(size, leaves(count))
    assert all(len(data) <= CHUNK for data in nodes.values())
    assert len(made.nodes) == -(-count // NODE_FANOUT)
    assert read(made.root, nodes) == made


def test_only_equal_bytes_have_the_same_root() -> None:
    root = build(2 * CHUNK, leaves(2))[0].root
    assert build(2 * CHUNK, leaves(2))[0].root == root
    assert build(2 * CHUNK - 1, leaves(2))[0].root != root
    assert build(2 * CHUNK, leaves(2)[::-1])[0].root != root


def refused(data: bytes) -> str:
    with pytest.raises(ModelError) as error:
        read_top(digest_of(data), data)
    return error.value.code


def test_bytes_that_do_not_match_the_root_are_refused() -> None:
    made, nodes = build(CHUNK, leaves(1))
    with pytest.raises(ModelError) as error:
        read_top(made.root, nodes[made.root] + b"x")
    assert error.value.code == "bad-digest"


@pytest.mark.parametrize("at", [*range(32), -1])
def test_a_changed_header_is_refused_or_another_blob(at: int) -> None:
    _, nodes = build(3 * CHUNK - 65_000, leaves(3))
    data = bytearray(next(iter(nodes.values())))
    if at < 0:
        assert refused(bytes(data[:-1])) == refused(bytes(data) + bytes(32)) == "bad-blob"
        return
    data[at] ^= 1
    if 21 <= at < 24:  # low bytes of the size, which still gives three chunks
        assert len(read_top(digest_of(bytes(data)), bytes(data)).children) == 3
    else:
        assert refused(bytes(data)) == "bad-blob"


@pytest.mark.parametrize("chunks", [10_000_000, CHUNKS_LIMIT + 1, 2**43])
def test_a_top_node_that_claims_too_much_is_refused_before_allocation(chunks: int) -> None:
    head = b"shoal-blob/1".ljust(16, b"\0") + (chunks * CHUNK).to_bytes(8) + (2).to_bytes(8)
    assert refused(head + bytes(32) * 4) == "bad-blob"
    with pytest.raises(ModelError) as error:
        build(chunks * CHUNK, range(chunks))  # type: ignore[arg-type]
    assert error.value.code == "too-large"


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        read_top(digest_of(data), data[:-1] if len(data) % 2 else data + b"?")


def test_a_node_of_the_wrong_length_is_refused() -> None:
    made, nodes = build((NODE_FANOUT + 2) * CHUNK, leaves(NODE_FANOUT + 2))
    top = read_top(made.root, nodes[made.root])
    first, last = (nodes[digest] for digest in top.children)
    for index, data in ((0, last), (1, first), (1, last + bytes(32)), (1, last[:-1]), (1, b"")):
        with pytest.raises(ModelError) as error:
            read_node(top, index, data)
        assert error.value.code == "bad-blob"


def test_a_chunk_with_two_sizes_is_refused() -> None:
    digest = leaves(1)[0]
    made, nodes = build(2 * CHUNK, [digest] * 2)
    assert read(made.root, nodes).sizes() == {digest: CHUNK}
    made, nodes = build(2 * CHUNK - 1, [digest] * 2)
    with pytest.raises(ModelError) as error:
        read(made.root, nodes)
    assert error.value.code == "bad-blob"


def test_flipped_bits_never_give_the_same_tree() -> None:
    """Flips 10,000 bits of a top node."""
    made, nodes = build(100 * CHUNK, leaves(100))
    data, numbers = nodes[made.root], random.Random(3)
    for _ in range(10_000):
        bad = bytearray(data)
        bad[numbers.randrange(len(bad))] ^= 1 << numbers.randrange(8)
        with pytest.raises(ModelError):
            read_top(made.root, bytes(bad))
