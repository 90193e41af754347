"""The ends of revoked feeds, and which heads may lead to them."""

import pytest

from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import FORKED, Head
from shoal.state.feeds.feed import NOWHERE, beyond
from shoal.state.replication.ends import Ends, leads_on
from shoal.state.replication.gossip import told

JOBS: Plot = ("jobs", 0)
A, B = b"a" * 32, b"b" * 32
END = Head(5, 3, b"e" * 32)


def test_feeds_without_an_end_have_no_valid_entries() -> None:
    ends = Ends()
    assert ends.replace({A: {JOBS: END}}) == [A]
    assert ends.of(A, JOBS) == END
    assert ends.of(A, ("usage", 0)) == NOWHERE
    assert ends.of(B, JOBS) is None
    assert ends.replace({A: {JOBS: END}}) == []
    assert ends.replace({B: {}}) == [A, B]
    assert ends.of(A, JOBS) is None


@pytest.mark.parametrize(
    ("head", "is_beyond"),
    [
        (END, False),
        (Head(5, 2, b"x" * 32), False),
        (Head(4, 9, b"x" * 32), False),
        (Head(5, 3, b"x" * 32), True),
        (Head(5, 4, b"x" * 32), True),
        (Head(6, 0, b"x" * 32), True),
        (FORKED, True),
    ],
)
def test_heads_beyond_an_end(head: Head, is_beyond: bool) -> None:
    assert beyond(head, END) is is_beyond
    assert not beyond(head, None)
    assert beyond(head, NOWHERE)


@pytest.mark.parametrize(
    ("mine", "theirs", "leads"),
    [
        (None, END, True),
        (None, Head(5, 1, b"x" * 32), True),
        (None, Head(5, 9, b"x" * 32), True),  # its chain may contain the end
        (None, Head(5, 3, b"x" * 32), False),
        (None, Head(6, 0, b"x" * 32), False),
        (None, FORKED, False),
        (END, Head(5, 9, b"x" * 32), False),
        (Head(5, 1, b"m" * 32), Head(5, 1, b"x" * 32), False),
        (Head(5, 1, b"m" * 32), Head(5, 2, b"x" * 32), True),
        (Head(4, 9, b"m" * 32), Head(5, 0, b"x" * 32), True),
        (Head(5, 1, b"m" * 32), Head(4, 9, b"x" * 32), False),
    ],
)
def test_heads_that_lead_on(mine: Head | None, theirs: Head, leads: bool) -> None:
    assert leads_on(mine, told(A, JOBS, theirs), END) is leads
    assert not leads_on(mine, told(A, JOBS, theirs), NOWHERE)
