"""Places for sessions that wait for adapters."""

from contextlib import ExitStack

import pytest

from shoal.tasks.defaults import (
    ADAPTER_WAITS,
    ADAPTER_WAITS_OF_ONE,
    ADAPTERS_PROVEN,
    SESSIONS_PER_STAGE,
)
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.stageadapters import AdapterWaits
from tests.tasks.fake_swarm import peer_of


def test_proven_gateways_together_leave_places_for_sessions_without_adapters() -> None:
    waits, taken = AdapterWaits(peer_of(1)), 0
    with ExitStack() as stack:
        for number in range(100, 120):
            waits.loaded(peer_of(number))
            for _ in range(ADAPTER_WAITS_OF_ONE + 1):
                try:
                    stack.enter_context(waits.place(peer_of(number)))
                    taken += 1
                except SessionError as error:
                    assert error.code == "busy"
        assert taken == ADAPTER_WAITS < SESSIONS_PER_STAGE / 2
        stack.enter_context(waits.place(peer_of(1)))
    with waits.place(peer_of(100)):
        assert waits.waiting.total() == 1


def test_a_place_is_free_again_after_a_failure() -> None:
    waits = AdapterWaits(peer_of(1))
    for _ in range(100):
        with pytest.raises(KeyError), waits.place(peer_of(2)):
            raise KeyError
    assert not waits.waiting


def test_the_gateways_that_are_remembered_are_bounded() -> None:
    waits = AdapterWaits(peer_of(1))
    for number in range(ADAPTERS_PROVEN + 50):
        waits.loaded(peer_of(number % 250 + 1) + str(number))  # type: ignore[arg-type]
    assert len(waits.proven) == ADAPTERS_PROVEN
