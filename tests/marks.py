"""Marks for some of a test's cases."""

from typing import Any

import pytest


def in_ci(*values: Any) -> list[Any]:
    """Return cases for `parametrize` that run in `make test-ci` alone, because they take long and
    the others of the same test show most of what they would.

    A tuple has the values of several parameters.
    """
    cases = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*case, marks=pytest.mark.ci) for case in cases]
