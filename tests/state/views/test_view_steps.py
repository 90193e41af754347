"""A step ends after many values or many bytes."""

from shoal.state import defaults
from shoal.state.views.view import StepCounter


def lengths(*values: bytes | None) -> list[int]:
    """Return the number of values in each step."""
    steps, found, count = StepCounter(), [], 0
    for value in values:
        count += 1
        if steps.ends_with(value):
            found.append(count)
            count = 0
    return found


def test_many_values_make_a_step() -> None:
    assert lengths(*[None] * 2 * defaults.SHOWN_AT_ONCE) == [defaults.SHOWN_AT_ONCE] * 2


def test_many_bytes_make_a_step() -> None:
    quarter = b"x" * (defaults.SHOWN_BYTES // 4)
    assert lengths(*[quarter] * 9) == [4, 4]
    assert lengths(b"x" * defaults.SHOWN_BYTES, None, b"x" * defaults.SHOWN_BYTES) == [1, 2]
