"""ownrecord: changes of addresses wait for further ones, and others are sent at once."""

from math import inf
from typing import cast

import pytest

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.membership.ownrecord import OwnMemberRecord
from shoal.transport.address import Address
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity

ME = Identity.from_seed(bytes(32))
WHERE = (str(Address("1.2.3.4", 4001, ME.peer)),)


class Clock:
    """A host, as far as a record uses it."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_800_000_000.0 + self.time


def make() -> tuple[OwnMemberRecord, Clock]:
    clock = Clock()
    return OwnMemberRecord(cast(Host, clock), ME), clock


def test_without_a_link_nothing_waits() -> None:
    own, _ = make()
    before = own.sealed
    own.renew(linked=False, addresses=WHERE)
    assert own.sealed != before, "the first link gets it"
    assert own.take(0.0) is None and own.next_at() == inf


def test_addresses_are_gathered_and_other_changes_are_urgent() -> None:
    own, clock = make()
    before = own.sealed
    own.renew(linked=True, addresses=WHERE)
    assert own.take(clock.time) is None and own.sealed == before
    assert own.next_at() == defaults.ADDRESSES_GATHERED
    clock.time = own.next_at()
    push = own.take(clock.time)
    assert push == (own.sealed, False) and own.sealed != before
    assert own.take(clock.time) is None
    own.renew(linked=True, runs=(5,))
    assert own.take(clock.time) == (own.sealed, True)


def test_an_invalid_change_leaves_the_record() -> None:
    own, _ = make()
    before = own.record, own.sealed
    with pytest.raises(BadRecord):
        own.renew(linked=True, runs=(defaults.MAX_SEQ,))
    assert (own.record, own.sealed) == before and own.next_at() == inf


def test_a_later_record_of_the_same_key_is_outbid_after_a_pause() -> None:
    own, clock = make()
    claimed = own.record.seq + 1000
    assert own.may_reclaim(clock.time) and own.reclaim(claimed, clock.time)
    own.renew(linked=True)
    assert own.record.seq > claimed
    assert not own.may_reclaim(clock.time + defaults.RECLAIM_PAUSE / 2)
    assert own.may_reclaim(clock.time + defaults.RECLAIM_PAUSE)
    assert not own.reclaim(claimed, clock.time), "it is not later than the record any more"
    assert not own.reclaim(defaults.MAX_SEQ, clock.time), "there is no later number"
