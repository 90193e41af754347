"""One signature covers the nonces of many askers."""

from hashlib import sha256

import pytest

from shoal.state import defaults
from shoal.state.membership.gathering import WitnessQuestions, merkle_root, tree
from shoal.transport.identity import PeerId


def numbers(count: int) -> list[bytes]:
    return [sha256(f"{n}".encode()).digest() for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 100, defaults.GATHERED])
def test_a_short_path_leads_from_each_nonce_to_the_root(count: int) -> None:
    found = numbers(count)
    top, paths = tree(found)
    assert [merkle_root(number, path) for number, path in zip(found, paths, strict=True)] == [
        top
    ] * count
    assert max(map(len, paths)) <= (count - 1).bit_length()
    other = numbers(count + 1)[-1]
    assert all(merkle_root(other, path) != top for path in paths)


def test_the_longest_path_is_accepted() -> None:
    assert (defaults.GATHERED - 1).bit_length() <= defaults.PATH


def test_a_single_nonce_is_signed_itself() -> None:
    assert tree(numbers(1)) == (numbers(1)[0], [[]])


def test_questions_are_gathered_for_a_moment() -> None:
    gathering, (one, two) = WitnessQuestions(), numbers(2)
    first = gathering.add(one, [PeerId("a")], 10.0)
    second = gathering.add(two, [PeerId("b"), PeerId("a")], 10.3)
    assert first and second and first[0] is second[0] and (first[1], second[1]) == (0, 1)
    assert gathering.due == 10.0 + defaults.GATHER_S
    assert gathering.take(10.4) is None
    assert gathering.take(gathering.due) is first[0]
    assert set(first[0].peers) == {"a", "b"}
    assert (
        first[0].close()
        == merkle_root(one, first[0].paths[0])
        == merkle_root(two, first[0].paths[1])
    )
    assert gathering.take(1e9) is None, "nothing waits"


def test_batches_are_rate_limited_and_answered_in_time() -> None:
    gathering, lots, longest, now = WitnessQuestions(), 0, 0.0, 0.0
    asked: float | None = None
    while now < 100.0:
        if gathering.add(bytes(32), [], now) and asked is None:
            asked = now
        if gathering.take(now) and asked is not None:
            lots, longest, asked = lots + 1, max(longest, now - asked), None
        now += 0.05
    burst, rate = defaults.GATHERINGS
    assert burst + 90 * rate - 1 <= lots <= burst + 100 * rate
    assert longest + defaults.PROVE_S < defaults.ANSWER_S


def test_one_batch_is_bounded() -> None:
    gathering = WitnessQuestions()
    added = [gathering.add(number, [], 0.0) for number in numbers(defaults.GATHERED + 5)]
    assert sum(one is None for one in added) == 5


def ask(gathering: WitnessQuestions, peer: str, now: float) -> float:
    """Ask about one member, and return how long the batch waits."""
    added = gathering.add(bytes(32), [PeerId(peer)], now)
    assert added is not None
    waits = added[0].due - now
    assert gathering.take(added[0].due) is added[0]
    return waits


def used_up(gathering: WitnessQuestions, now: float) -> float:
    """Ask about an old member until a batch would wait. Return the time."""
    while (wait := ask(gathering, "old", now)) <= defaults.GATHER_S:
        now += wait
    return now + wait


def test_questions_about_a_new_member_do_not_wait_for_the_pace() -> None:
    gathering, soon = WitnessQuestions(), defaults.GATHER_S
    ask(gathering, "old", 0.0)
    now = used_up(gathering, 100.0)
    assert ask(gathering, "new", now) == soon
    assert ask(gathering, "new", now + soon) == soon, "another one asks later"
    now = used_up(gathering, now + defaults.GATHER_NEW_S)
    assert ask(gathering, "new", now) > soon, "it is known by now"
    gathering.forget(PeerId("new"))
    assert ask(gathering, "new", now + 13) == soon, "it came back"


def test_batches_for_new_members_are_rate_limited_too() -> None:
    gathering, now = WitnessQuestions(), 0.0
    prompt = 0
    for number in range(400):
        waits = ask(gathering, f"member {number}", now)
        prompt += waits <= defaults.GATHER_S + 1e-9
        now += waits
    (burst, rate), (first, pace) = defaults.GATHERINGS_SOON, defaults.GATHERINGS
    assert prompt <= burst + first + now * (rate + pace) + 1


def test_a_hurried_batch_asks_only_its_own_members_to_sign() -> None:
    """The members in questions that can wait would otherwise sign once more."""
    gathering = WitnessQuestions()
    ask(gathering, "old", 0.0)
    now = used_up(gathering, 100.0)
    slow = gathering.add(bytes(32), [PeerId("old")], now)
    hurried = gathering.add(bytes(32), [PeerId("new"), PeerId("other")], now + 0.1)
    assert slow and hurried
    assert gathering.due == now + 0.1 + defaults.GATHER_S
    assert gathering.take(gathering.due) is hurried[0]
    assert set(hurried[0].peers) == {"new", "other"} and set(slow[0].peers) == {"old"}
    assert gathering.due == slow[0].due > now + 1.0
    assert gathering.take(slow[0].due) is slow[0]
