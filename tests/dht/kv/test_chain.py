"""kvchain: names of KV blocks."""

from dataclasses import replace

import pytest

from shoal.dht import defaults
from shoal.dht.errors import DhtError
from shoal.dht.kv.chain import Chain, KvGroup, KvScope, chain_of
from shoal.dht.records.record import kv_key
from shoal.transport.host.real import RealHost

from ..chains import GROUP, LAYERS, SCOPE, chain, forked, tokens


def test_equal_names_are_equal_prefixes() -> None:
    one, other = tokens(8), tokens(8)
    other[5 * defaults.KV_BLOCK + 3] += 1
    a, b = chain_of(SCOPE, one), chain_of(SCOPE, other)
    assert a is not None and b is not None
    assert a.names[:5] == b.names[:5]
    assert not set(a.names[5:]) & set(b.names), "all names after a difference differ"
    assert (a.first, a.key) == (b.first, b.key) and a.tip != b.tip


def test_only_whole_blocks_have_names() -> None:
    one = tokens(2)
    assert chain_of(SCOPE, one[:-1]) == chain(1)
    assert chain_of(SCOPE, one[: defaults.KV_BLOCK - 1]) is None
    assert chain_of(SCOPE, []) is None


def test_a_chain_grows_without_its_tokens() -> None:
    assert Chain(SCOPE, chain(3).names).extended(tokens(8)[3 * defaults.KV_BLOCK :]) == chain(8)
    assert chain(3).extended([1, 2, 3]) == chain(3)


@pytest.mark.parametrize(
    "other",
    [
        replace(SCOPE, root="cd" * 32),
        replace(SCOPE, precision="float32"),
        replace(SCOPE, adapter="ef" * 32),
        replace(SCOPE, group=KvGroup(b"another secret of 24 bytes")),
    ],
)
def test_names_of_different_scopes_have_nothing_in_common(other: KvScope) -> None:
    mine, others = chain(4), chain(4, scope=other)
    assert not set(mine.names) & set(others.names) and mine.key != others.key


def test_a_record_does_not_reveal_the_secret() -> None:
    """Using the tag in the record as the secret does not give the group's names."""
    body = chain(3).body(LAYERS)
    assert body.key == chain(3).key
    assert body.key == kv_key(SCOPE.root, SCOPE.precision, "", GROUP.tag, chain(3).first)
    assert (body.tip, body.blocks, body.salt) == (chain(3).tip, 3, GROUP.tag)
    assert GROUP.secret.hex() not in repr(body) and repr(GROUP.secret) not in repr(chain(3))
    guessed = replace(SCOPE, group=KvGroup(GROUP.tag.encode()))
    assert chain(3, scope=guessed).first != body.first


def test_groups_of_single_requesters_share_nothing() -> None:
    one, other = KvGroup.alone(RealHost()), KvGroup.alone(RealHost())
    assert one.secret != other.secret and one.tag != other.tag


@pytest.mark.parametrize("secret", [b"", b"too short", b"x" * 65])
def test_an_invalid_secret(secret: bytes) -> None:
    with pytest.raises(DhtError, match="16 to 64 bytes"):
        KvGroup(secret)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_invalid_tokens(token: int) -> None:
    with pytest.raises(DhtError) as raised:
        chain_of(SCOPE, [token] * defaults.KV_BLOCK)
    assert raised.value.code == "bad-tokens"


def test_a_chain_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "KV_CHAIN", 4)
    assert len(chain(4)) == 4
    with pytest.raises(DhtError) as raised:
        chain(5)
    assert raised.value.code == "too-long"
    with pytest.raises(DhtError):
        chain(3).extended(tokens(2))


def test_a_fork_keeps_the_beginning() -> None:
    assert forked(chain(6), 4, 5, seed=9).names[:4] == chain(6).names[:4]
