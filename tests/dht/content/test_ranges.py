"""ranges: encoding of the chunks that a peer has."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.content.ranges import pack_ranges, read_ranges
from shoal.dht.defaults import HAVE_RANGES

ORDER = [f"{n:064x}" for n in range(40)]


@given(st.lists(st.booleans(), max_size=40))
def test_ranges_round_trip(held: list[bool]) -> None:
    expected = [digest for digest, here in zip(ORDER, held, strict=False) if here]
    assert read_ranges(pack_ranges(held), ORDER) == expected


@given(st.binary(max_size=64))
def test_any_ranges_stay_inside_the_list(data: bytes) -> None:
    found = read_ranges(data, ORDER)
    assert found is None or (set(found) <= set(ORDER) and len(set(found)) == len(found))


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4) for number in numbers)


def test_invalid_ranges_are_refused() -> None:
    for bad in (
        words(1),
        words(1, 2, 3),
        words(2, 1),
        words(1, 1),
        words(0, 2, 1, 3),
        words(0, 2, 2, 3),  # two adjacent runs, which should be one
        words(0, 41),
        words(0, 2**32 - 1),
        words(0, 1) + b"\x00",
        words(*range(2 * HAVE_RANGES + 2)),
    ):
        assert read_ranges(bad, ORDER) is None
    assert read_ranges(words(0, 40), ORDER) == ORDER
    assert read_ranges(b"", ORDER) == []


def test_the_number_of_runs_is_bounded() -> None:
    held = [True, False] * (HAVE_RANGES + 10)
    assert len(pack_ranges(held)) == 8 * HAVE_RANGES
