"""announcing: first chunk, doublings up to a quarter, quarters, the whole content."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.exchange.announcing import next_announcement


def steps(total: int) -> list[int]:
    """Return the chunk counts that are announced when chunks arrive one by one."""
    said, due = [], 1
    for held in range(1, total + 1):
        if held >= due:
            said.append(held)
            due = next_announcement(held, total)
    return said


def test_announcement_schedule() -> None:
    assert steps(1) == [1]
    assert steps(4) == [1, 2, 3, 4]
    assert steps(100) == [1, 2, 4, 8, 16, 25, 50, 75, 100]
    assert next_announcement(100, 100) > 100
    assert next_announcement(0, 100) == 1


@given(st.integers(1, 5000))
def test_the_whole_is_always_announced_and_announcements_are_few(total: int) -> None:
    said = steps(total)
    assert said[-1] == total
    assert len(said) <= 20
