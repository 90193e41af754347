"""Which authors are kept, and which are evicted when the budget is exceeded."""

from random import Random
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.replication.authors import Authors, _depth, weight_of

OWN = b"o" * 32


def key(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def keys(name: str, count: int) -> list[bytes]:
    return [key(f"{name}{number}") for number in range(count)]


def room_for(count: int) -> Authors:
    return Authors(OWN, budget=count * defaults.AUTHOR_LEAST)


def checked(authors: Authors) -> None:
    """Check that the stored sums are correct."""
    branches: list[Any] = [authors._top]
    for branch in branches:
        branches += branch.kids.values()
        own = max(branch.weight - branch.free, 0)
        assert branch.load == own + sum(kid.load for kid in branch.kids.values())
        assert all(kid.parent is branch for kid in branch.kids.values())
    assert {each.key for each in branches if len(each.key) == 32} == set(authors.keys())
    assert authors.total == sum(each.weight for each in branches)


def test_own_linked_and_vouched_for_authors_are_kept() -> None:
    authors = room_for(100)
    assert OWN in authors
    assert authors.linked(key("a")).added == (key("a"),)
    assert set(authors.vouches(key("a"), keys("v", 3)).added) == set(keys("v", 3))
    assert authors.vouches(key("nobody"), keys("w", 3)).added == ()
    assert authors.vouches(key("a"), keys("v", 2)).dropped == (key("v2"),)
    checked(authors)


def test_vouches_of_one_author_are_limited() -> None:
    authors = room_for(1000)
    authors.linked(key("a"))
    assert len(authors.vouches(key("a"), keys("v", 100)).added) == defaults.AUTHOR_VOUCHED


def test_an_author_with_two_vouchers_stays_when_one_withdraws() -> None:
    authors = room_for(100)
    for name in ("a", "b"):
        authors.linked(key(name))
        authors.vouches(key(name), [key("v")])
    assert authors.vouches(key("a"), []).dropped == ()
    assert authors.vouches(key("b"), []).dropped == (key("v"),)
    checked(authors)


def test_a_lost_link_counts_for_a_while() -> None:
    authors = room_for(2000)
    for name in keys("p", defaults.PAST_LINKS + 1):
        authors.linked(name)
        last = authors.unlinked(name)
    assert last.dropped == (key("p0"),)
    assert key("p1") in authors
    checked(authors)


def test_a_chain_of_vouchers_is_limited_in_depth() -> None:
    authors = room_for(1000)
    authors.linked(key("v0"))
    for number in range(40):
        authors.vouches(key(f"v{number}"), [key(f"v{number + 1}")])
    assert len(authors) == defaults.VOUCH_DEPTH + 1  # and this node
    checked(authors)


def test_a_million_keys_behind_one_link_do_not_evict_others() -> None:
    authors = room_for(100)
    for name in ("good", "bad"):
        authors.linked(key(name))
    honest = keys("h", 40)
    authors.vouches(key("good"), honest)
    waiting = [key("bad")]
    for _ in range(300):
        voucher = waiting.pop(0)
        waiting += authors.vouches(voucher, keys(voucher.hex()[:20], 64)).added or [voucher]
    assert authors.total <= 100 * defaults.AUTHOR_LEAST
    assert set(honest) <= set(authors.keys())
    checked(authors)


def test_keys_behind_a_link_of_a_link_do_not_evict_others() -> None:
    """If an honest peer vouches for a liar too, its other authors stay."""
    authors = room_for(60)
    authors.linked(key("good"))
    honest = keys("h", 20)
    authors.vouches(key("good"), [*honest, key("liar")])
    for number in range(20):
        authors.vouches(key("liar"), keys(f"x{number}-", 64))
    assert set(honest) <= set(authors.keys())
    assert authors.total <= 60 * defaults.AUTHOR_LEAST
    checked(authors)


def test_an_author_vouched_for_by_a_liar_moves_to_an_honest_voucher() -> None:
    authors = room_for(70)
    for name in ("bad", "worse", "good"):
        authors.linked(key(name))
    honest = keys("h", 20)
    authors.vouches(key("bad"), [*keys("k", 44), *honest])
    authors.vouches(key("good"), honest)
    authors.vouches(key("worse"), keys("w", 30))
    assert set(honest) <= set(authors.keys())
    checked(authors)


def test_with_eviction_by_age_honest_authors_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def oldest(self: Any) -> Any:
        return next((each for each in self._kept.values() if not each.free), None)

    monkeypatch.setattr(Authors, "_heaviest", oldest)
    with pytest.raises(AssertionError):
        test_a_million_keys_behind_one_link_do_not_evict_others()
    with pytest.raises(AssertionError):
        test_keys_behind_a_link_of_a_link_do_not_evict_others()


def test_without_another_voucher_they_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authors, "_lighter", lambda self, branch: None)
    with pytest.raises(AssertionError):
        test_an_author_vouched_for_by_a_liar_moves_to_an_honest_voucher()


def test_the_weight_of_an_author_grows_with_its_entries() -> None:
    authors = room_for(10)
    authors.linked(key("a"))
    authors.vouches(key("a"), keys("v", 4))
    change = authors.weigh(key("v1"), 9 * defaults.AUTHOR_LEAST)
    assert change.dropped == (key("v1"),)
    assert authors.total <= 10 * defaults.AUTHOR_LEAST
    checked(authors)


def test_authors_without_space_are_tried_again() -> None:
    authors = room_for(20)
    for name in ("a", "b"):
        authors.linked(key(name))
    authors.vouches(key("b"), keys("w", 8))
    authors.vouches(key("a"), keys("v", 30))
    assert len(authors) == 20
    assert list(authors.refill()) == []
    authors.vouches(key("b"), [])
    added = [name for change in authors.refill() for name in change.added]
    assert len(added) == 8
    assert set(added) <= set(keys("v", 30))
    checked(authors)


def test_heavy_linked_authors_evict_only_each_other() -> None:
    """40 linked keys that weigh a thirtieth of the budget each evict no honest author."""
    authors = room_for(1024)
    honest = keys("h", 64)
    for number, name in enumerate(keys("good", 16)):
        authors.linked(name)
        authors.vouches(name, honest[4 * number :][:4])
    for liar in keys("bad", 40):
        authors.linked(liar)
        authors.weigh(liar, 1024 * defaults.AUTHOR_LEAST // 30)
    assert set(honest) <= set(authors.keys()) and authors.total <= 1024 * defaults.AUTHOR_LEAST
    assert len(set(keys("bad", 40)) & set(authors.keys())) > 20, "the rest is theirs"
    checked(authors)
    gone = next(liar for liar in keys("bad", 40) if liar not in authors)
    authors.unlinked(gone)
    authors.linked(gone)
    assert gone in authors, "it is back with its free share"
    for liar in keys("bad", 40):
        authors.unlinked(liar)
    checked(authors)


def test_if_a_link_is_enough_honest_authors_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authors, "_free_of", lambda self, key: 2**63 * (key in self._linked))
    with pytest.raises(AssertionError):
        test_heavy_linked_authors_evict_only_each_other()


def test_an_evicted_linked_author_comes_back_when_there_is_space() -> None:
    authors = room_for(40)
    for name in keys("l", 4):
        authors.linked(name)
        authors.weigh(name, 20 * defaults.AUTHOR_LEAST)
    assert key("l3") not in authors
    authors.weigh(key("l0"), 0)
    for _ in authors.refill():
        pass
    assert key("l3") in authors
    checked(authors)


def test_authors_of_an_evicted_voucher_are_moved_a_few_at_a_time() -> None:
    authors = room_for(8000)
    authors.linked(key("bad"))
    authors.vouches(key("bad"), keys("k", 64))
    for number, name in enumerate(keys("k", 64)):
        authors.vouches(name, keys(f"k{number}-", 64))
    assert len(authors) == 2 + 64 + 64 * 64
    gone, steps = set(authors.vouches(key("bad"), []).dropped), 1
    assert authors.unsettled
    while authors.unsettled:
        assert len(gone) <= steps * defaults.SETTLED_AT_ONCE
        gone |= set(authors.settle().dropped)
        steps += 1
    assert len(gone) == 64 + 64 * 64 and set(authors.keys()) == {OWN, key("bad")}
    checked(authors)


def test_authors_are_evicted_a_few_at_a_time() -> None:
    authors = room_for(200)
    authors.linked(key("bad"))
    authors.vouches(key("bad"), keys("k", 64))
    for number, name in enumerate(keys("k", 2)):
        authors.vouches(name, keys(f"k{number}-", 64))
    gone = set(authors.weigh(OWN, 190 * defaults.AUTHOR_LEAST).dropped)
    assert 0 < len(gone) <= 2 * defaults.SETTLED_AT_ONCE and authors.unsettled
    while authors.unsettled:
        authors.settle()
    assert authors.total <= 200 * defaults.AUTHOR_LEAST
    checked(authors)


def test_a_moved_author_keeps_only_authors_within_the_depth() -> None:
    authors = room_for(200)
    for name in ("one", "two"):
        authors.linked(key(name))
    authors.vouches(key("one"), [key("c0")])
    for number in range(12):
        authors.vouches(key(f"c{number}"), [key(f"c{number + 1}")])
    authors.vouches(key("two"), [key("d0")])
    for number in range(8):
        authors.vouches(key(f"d{number}"), [key(f"d{number + 1}")])
    authors.vouches(key("d8"), [key("c0")])
    authors.vouches(key("one"), [])
    while authors.unsettled:
        authors.settle()
    assert key("c0") in authors and key("c12") not in authors
    assert max(_depth(branch) for branch in authors._kept.values()) <= defaults.VOUCH_DEPTH
    checked(authors)


def test_a_moved_author_with_another_voucher_stays() -> None:
    authors = room_for(800)
    for name in ("one", "two"):
        authors.linked(key(name))
    authors.vouches(key("one"), keys("k", 64))
    authors.vouches(key("k0"), keys("v", 64))
    authors.vouches(key("k1"), keys("v", 64))
    authors.vouches(key("two"), [key("k1")])
    authors.vouches(key("one"), [])
    while authors.unsettled:
        authors.settle()
    assert set(authors.keys()) == {OWN, key("one"), key("two"), key("k1"), *keys("v", 64)}
    checked(authors)


def test_a_refill_step_processes_few_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "REFILLED_AT_ONCE", 4)
    authors = room_for(60)
    for name in keys("l", 10):
        authors.linked(name)
        authors.vouches(name, [name + b"'"])
    authors.vouches(key("l0"), [])
    assert len(list(authors.refill())) == 5  # this node, ten with a link, nine named


def test_group_members_are_kept_whatever_is_vouched_for() -> None:
    authors = room_for(20)
    assert set(authors.grouped(keys("g", 5)).added) == set(keys("g", 5))
    authors.linked(key("bad"))
    authors.vouches(key("bad"), keys("x", 64))
    assert set(keys("g", 5)) <= set(authors.keys())
    authors.grouped([])
    assert OWN in authors
    checked(authors)


def test_random_changes_keep_sums_and_budget_correct() -> None:
    for seed in range(30):
        random = Random(seed)
        authors, names = room_for(25), keys("n", 60)
        kept = {OWN}
        for _ in range(300):
            name = random.choice(names)
            what = random.randrange(5)
            if what == 0 and len(authors._linked) < 8:
                changes = [authors.linked(name)]
            elif what == 1:
                changes = [authors.unlinked(name)]
            elif what == 2:
                changes = [authors.vouches(name, random.sample(names, random.randrange(20)))]
            elif what == 3:
                changes = [authors.weigh(name, random.randrange(3 * defaults.AUTHOR_LEAST))]
            else:
                changes = list(authors.refill())
            for change in changes:
                kept = (kept - set(change.dropped)) | set(change.added)
            assert kept == set(authors.keys())
            checked(authors)
        free = sum(min(each.weight, each.free) for each in authors._kept.values())
        assert authors.total <= max(25 * defaults.AUTHOR_LEAST, free)


def test_a_weight_has_a_minimum() -> None:
    assert weight_of(0) == defaults.AUTHOR_LEAST
    assert weight_of(10**6) == 10**6 + defaults.AUTHOR_WEIGHT


def test_a_key_that_thousands_name_is_stored_once() -> None:
    authors = Authors(bytes(32))
    for number in range(1, 4):
        authors.linked(key(f"a{number}"))
        authors.vouches(key(f"a{number}"), [bytes(bytearray(key("named"))) for _ in range(2)])
    named = {id(name) for branch in authors._kept.values() for name in branch.vouches}
    assert len(named) == 1 and key("named") in authors
