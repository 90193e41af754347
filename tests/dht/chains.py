"""Chains for tests of the KV index."""

from random import Random

from shoal.dht.kv.chain import Chain, KvScope, chain_of

SCOPE = KvScope("ab" * 32, "bfloat16")
LAYERS = (0, 8)


def names(chunks: int, seed: int = 0) -> list[bytes]:
    """Names of chunks, as a gateway would make them."""
    random = Random(seed)
    return [random.randbytes(16) for _ in range(chunks)]


def chain(chunks: int, seed: int = 0, scope: KvScope = SCOPE) -> Chain:
    found = chain_of(scope, names(chunks, seed))
    assert found is not None
    return found


def forked(one: Chain, chunks: int, more: int, seed: int) -> Chain:
    """Return a chain that shares the first `chunks` chunks of `one` and continues differently."""
    rest = tuple(map(one.scope.tag, names(more, seed)))
    return Chain(one.scope, one.tags[:chunks] + rest)
