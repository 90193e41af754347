"""Marks for some of a test's cases."""

from typing import Any

import pytest


def in_ci(*values: Any) -> list[Any]:
    """Return cases for `parametrize` that run in `make test-ci` alone, because they take long and
    the others of the same test show most of what they would."""
    return [pytest.param(value, marks=pytest.mark.ci) for value in values]
