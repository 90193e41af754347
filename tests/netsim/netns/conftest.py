"""What the tests of the kernel backend share."""

import pytest

from shoal.netsim.netns.namespaces import available


@pytest.fixture
def kernel() -> None:
    """Skips, with the reason, where this machine has no namespaces for us."""
    reason = available()
    if reason is not None:
        pytest.skip(reason)
