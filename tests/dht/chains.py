"""Chains for tests of the KV index."""

from random import Random

from shoal.dht import defaults
from shoal.dht.kv.chain import Chain, KvGroup, KvScope, chain_of

GROUP = KvGroup(b"the secret of a group" * 2)
SCOPE = KvScope("ab" * 32, "bfloat16", GROUP)
LAYERS = (0, 8)


def tokens(blocks: int, seed: int = 0) -> list[int]:
    random = Random(seed)
    return [random.randrange(128_000) for _ in range(blocks * defaults.KV_BLOCK)]


def chain(blocks: int, seed: int = 0, scope: KvScope = SCOPE) -> Chain:
    found = chain_of(scope, tokens(blocks, seed))
    assert found is not None
    return found


def forked(one: Chain, blocks: int, more: int, seed: int) -> Chain:
    """Return a chain that shares the first `blocks` blocks of `one` and continues differently."""
    return Chain(one.scope, one.names[:blocks]).extended(tokens(more, seed))
