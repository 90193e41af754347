"""No address gets more packets than its budget allows."""

from collections import deque

import pytest

from shoal.transport.nat.punch.budget import PunchBudget
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.networks import targets

LIMITS = PunchLimits()


def test_1500_datagrams_to_one_address_in_ten_minutes() -> None:
    budget = PunchBudget(LIMITS)
    sent = [n for n in range(10_000) if budget.datagram("11.0.0.1", n * 0.05)]
    assert len(sent) == 1500 and budget.refused == 8500
    assert budget.datagram("11.0.0.2", 500.0), "others have their own"


def test_no_window_exceeds_the_budget() -> None:
    budget = PunchBudget(LIMITS)
    recent: deque[float] = deque()
    now, most = 0.0, 0
    while now < 3000:
        now += 0.13
        if budget.datagram("11.0.0.1", now):
            recent.append(now)
        while recent[0] <= now - LIMITS.window_s:
            recent.popleft()
        most = max(most, len(recent))
    assert most == 1500


def test_spent_budget_returns_after_the_window() -> None:
    budget = PunchBudget(LIMITS)
    assert all(budget.syn("11.0.0.1", 0.0) for _ in range(60))
    assert not budget.syn("11.0.0.1", 599.0)
    assert budget.syn("11.0.0.1", 610.0)


def test_an_ipv6_network_is_one_target() -> None:
    assert targets("2600::1") == targets("2600::ffff:1") != targets("2600:0:0:1::1")
    budget = PunchBudget(LIMITS)
    assert sum(budget.datagram(f"2600::{n:x}", 0.0) for n in range(2000)) == 1500


def _aimed_at_a_line(budget: PunchBudget) -> int:
    """Return the connection attempts to the 256 networks of one home."""
    return sum(budget.syn(f"2600:1:2:{n % 256:x}::{n:x}", 0.0) for n in range(2000))


def test_the_networks_of_a_home_are_one_target_too() -> None:
    assert _aimed_at_a_line(PunchBudget(LIMITS)) == 2 * LIMITS.target_syns


def test_without_larger_networks_each_of_them_is_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.transport.defaults.TARGETS_SIX", ((64, 1),))
    targets.cache_clear()
    found = _aimed_at_a_line(PunchBudget(LIMITS))
    targets.cache_clear()
    assert found == 2000


def test_memory_is_bounded_and_active_targets_are_never_forgotten() -> None:
    budget = PunchBudget(LIMITS)
    assert all(budget.datagram("11.0.0.1", 0.0) for _ in range(1500))
    for n in range(3000):  # an attacker's way to have it forgotten
        budget.datagram(f"12.{n >> 8}.{n & 255}.1", 1.0)
    assert len(budget.datagrams) == LIMITS.targets
    assert not budget.datagram("11.0.0.1", 2.0)
    assert budget.datagram("13.0.0.1", 700.0), "and old targets are forgotten after a window"
    assert len(budget.datagrams) == 2  # the address and its network


def test_the_budget_that_is_left() -> None:
    budget = PunchBudget(LIMITS)
    assert budget.datagrams_left("11.0.0.1", 0.0) == 1500
    budget.datagram("11.0.0.1", 0.0)
    assert budget.datagrams_left("11.0.0.1", 1.0) == 1499
    assert budget.datagrams_left("11.0.0.1", 700.0) == 1500


@pytest.mark.parametrize("most", [10, 10**9])
def test_without_a_budget_sending_continues(most: int) -> None:
    budget = PunchBudget(PunchLimits(target_datagrams=most))
    assert sum(budget.datagram("11.0.0.1", 0.0) for _ in range(5000)) == min(most, 5000)


def test_unvouched_addresses_get_few_datagrams() -> None:
    budget = PunchBudget(LIMITS)
    each, total = int(LIMITS.unseen[0]), int(LIMITS.unseen_total[0])
    assert sum(budget.unseen("2600::1", 0.0) for _ in range(100)) == each
    assert not budget.unseen("2600::2", 1.0), "the same /64"
    assert budget.unseen("2600::1", 10.0), "one more in eight seconds"
    spread = sum(budget.unseen(f"2600:{n:x}::1", 10.0) for n in range(1, 1000))
    assert spread <= total, "all networks together"
    assert budget.datagrams_left("2600::1", 10.0) == 1500 - each - 1, "they count in all"
