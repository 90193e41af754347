"""Fixtures shared by the tests of the kernel backend."""

import pytest

from shoal.netsim.netns.namespaces import available


@pytest.fixture
def kernel() -> None:
    """Skip, with the reason, if this machine cannot create namespaces."""
    reason = available()
    if reason is not None:
        pytest.skip(reason)
