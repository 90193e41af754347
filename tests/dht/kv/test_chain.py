"""kvchain: tags of KV chunks."""

from dataclasses import replace

import pytest

from shoal.dht import defaults
from shoal.dht.errors import DhtError
from shoal.dht.kv.chain import KvScope, chain_of
from shoal.dht.records.record import kv_key

from ..chains import LAYERS, SCOPE, chain, forked, names


def test_equal_names_have_equal_tags() -> None:
    one, other = names(8), names(8)
    other[5] = bytes(16)
    a, b = chain_of(SCOPE, one), chain_of(SCOPE, other)
    assert a is not None and b is not None
    assert [x == y for x, y in zip(a.tags, b.tags, strict=True)] == [n != 5 for n in range(8)]
    assert (a.first, a.key) == (b.first, b.key)


def test_no_names_are_no_chain() -> None:
    assert chain_of(SCOPE, []) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(SCOPE, root="cd" * 32),
        replace(SCOPE, precision="float32"),
        replace(SCOPE, adapter="ef" * 32),
    ],
)
def test_tags_of_different_scopes_have_nothing_in_common(other: KvScope) -> None:
    mine, others = chain(4), chain(4, scope=other)
    assert not set(mine.tags) & set(others.tags) and mine.key != others.key


def test_a_record_does_not_reveal_a_name() -> None:
    """With a name, a peer may fetch the chunk."""
    body = chain(3).body(LAYERS)
    assert body.key == chain(3).key
    assert body.key == kv_key(SCOPE.root, SCOPE.precision, "", body.salt, chain(3).first)
    assert (body.tip, body.blocks) == (chain(3).tip, 3)
    assert not any(name.hex() in repr(body) for name in names(3))


def test_a_chain_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "KV_CHAIN", 4)
    assert len(chain(4)) == 4
    with pytest.raises(DhtError) as raised:
        chain(5)
    assert raised.value.code == "too-long"


def test_a_fork_keeps_the_beginning() -> None:
    assert forked(chain(6), 4, 5, seed=9).tags[:4] == chain(6).tags[:4]
