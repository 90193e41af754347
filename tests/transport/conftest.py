"""Fixtures that several tests of the transport share."""

from collections.abc import Iterator

import pytest

from shoal.transport.networks import networks


@pytest.fixture
def by_64_bits_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count IPv6 by /64 only, not by larger networks."""
    monkeypatch.setattr("shoal.transport.defaults.NETWORKS_SIX", ((64, 1),))
    networks.cache_clear()
    yield
    networks.cache_clear()
