"""kvsearch: how much of a chain a provider has, in few requests."""

from collections.abc import Callable

import pytest

from shoal.dht import defaults
from shoal.dht.kv.search import PROOF, SHORT, PrefixSearch, answer

from ..chains import chain, forked

CHAIN = chain(512)
COUNT = 2**18


def honest(tags: tuple[bytes, ...]) -> Callable[[bytes], bytes]:
    """Return an honest provider of these chunks."""
    known = {tag[:SHORT]: tag for tag in tags}

    def answered(question: bytes) -> bytes:
        shorts = [question[at : at + SHORT] for at in range(0, len(question), SHORT)]
        return answer(question, [known.get(short) for short in shorts])

    return answered


def ask(search: PrefixSearch, provider: Callable[[bytes], bytes]) -> bool:
    while not search.done:
        question = search.question()
        assert 0 < len(question) <= defaults.KV_ASKED * SHORT
        if not search.answered(provider(question)):
            return False
    return True


@pytest.mark.parametrize("held", [*range(0, 513, 7), 1, 63, 64, 65, 511, 512])
def test_at_most_two_requests_find_a_prefix_of_512_chunks(held: int) -> None:
    search = PrefixSearch(CHAIN.tags, 512)
    assert ask(search, honest(CHAIN.tags[:held]))
    assert search.held == held and search.rounds <= 2


def test_other_chunks_of_a_provider_do_not_count() -> None:
    other = forked(CHAIN, 100, 300, seed=5)
    search = PrefixSearch(CHAIN.tags, 400)
    assert ask(search, honest(other.tags))
    assert search.held == 100


def test_three_requests_for_the_longest_chain() -> None:
    tags = [n.to_bytes(32, "little") for n in range(1, COUNT + 1)]
    tags = [tag[:SHORT] + tag[:PROOF] + tag for tag in tags]
    for held in (0, 1, 4095, 4096, 100_003, COUNT - 1, COUNT):
        search = PrefixSearch(tags, len(tags))
        assert ask(search, honest(tuple(tags[:held])))
        assert search.held == held and search.rounds <= 3


def test_no_more_is_requested_than_was_claimed() -> None:
    search = PrefixSearch(CHAIN.tags, 10)
    assert len(search.question()) == 10 * SHORT
    assert ask(search, honest(CHAIN.tags))
    assert (search.held, search.rounds) == (10, 1)
    assert ask(beyond := PrefixSearch(CHAIN.tags, 10_000), honest(CHAIN.tags))
    assert beyond.held == 512


LIES: list[Callable[[bytes], bytes]] = [
    lambda question: b"",
    lambda question: bytes(len(question) - 1),
    lambda question: bytes(len(question) + 8),
    lambda question: question,  # it received the starts of tags and does not know the rest
    lambda question: b"\1" * len(question),
    lambda question: bytes(PROOF) + honest(CHAIN.tags)(question)[PROOF:],  # not a prefix
]


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_detected(lie: Callable[[bytes], bytes]) -> None:
    search = PrefixSearch(CHAIN.tags, 512)
    assert not ask(search, lie)
    assert search.rounds == 0
