"""Rates of links from measurements of the transport."""

from math import nan

import pytest

from shoal.tasks.costs.links import HOME_RATE, LOSS_MOST, UNKNOWN_TRIP_S, between, link_rates
from shoal.tasks.costs.rates import LinkRates
from shoal.tasks.costs.seconds import transfer_seconds
from tests.tasks.costs.linkstatus import status


def test_what_was_measured_counts_and_the_kind_of_path_stands_for_the_rest() -> None:
    measured = link_rates(status(0.03, "punched", 4e6, 0.01))
    assert (measured.round_trip_s, measured.rate, measured.loss) == (0.03, 4e6, 0.01)
    assert link_rates(status(0.03, "direct")).rate == HOME_RATE
    assert link_rates(status(0.001, "lan")).rate > HOME_RATE > link_rates(status(1, "relayed")).rate
    assert link_rates(status(None, "none")).round_trip_s == UNKNOWN_TRIP_S


@pytest.mark.parametrize("loss", [2.0, -1.0, nan])
def test_strange_losses_give_finite_times(loss: float) -> None:
    link = link_rates(status(0.03, "punched", 4e6, loss))
    assert 0.0 <= link.loss <= LOSS_MOST
    assert transfer_seconds(link, 10**6) < 10


def test_the_round_trip_between_two_peers_lies_within_the_triangle() -> None:
    near, far = LinkRates(0.02, 1e6, 0.01), LinkRates(0.1, 5e6)
    found = between(near, far)
    assert 0.08 <= found.round_trip_s <= 0.12
    assert (found.rate, found.loss) == (1e6, 0.01)
    assert between(near, near).round_trip_s <= 0.04
    assert between(LinkRates(0.066), LinkRates(0.066)).round_trip_s > 0.05, "homes have long lines"
    assert between(LinkRates(), far) == LinkRates(0.1, 5e6)
    assert between(LinkRates(), LinkRates()).round_trip_s == 0
