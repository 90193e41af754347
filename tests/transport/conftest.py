"""What several tests of the transport need."""

from collections.abc import Iterator

import pytest

from shoal.transport.place import networks


@pytest.fixture
def by_64_bits_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """IPv6 is counted by /64 and by no larger network."""
    monkeypatch.setattr("shoal.transport.defaults.NETWORKS_SIX", ((64, 1),))
    networks.cache_clear()
    yield
    networks.cache_clear()
