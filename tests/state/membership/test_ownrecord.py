"""ownrecord: changes of addresses wait for further ones, and others are sent at once."""

from math import inf
from typing import cast

import pytest

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.membership.ownrecord import OwnMemberRecord, is_slight
from shoal.transport.address import Address
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity

ME = Identity.from_seed(bytes(32))
WHERE = (str(Address("1.2.3.4", 4001, ME.peer)),)
HOME = str(Address("192.168.1.2", 4001, ME.peer))
SIX = str(Address("2600::2", 4001, ME.peer))
CIRCUITS = [
    str(Address(f"5.6.7.{n}", 4001, Identity.from_seed(bytes([n]) * 32).peer).through(ME.peer))
    for n in (1, 2, 3)
]


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


def test_a_change_that_peers_can_do_without_waits_longer() -> None:
    own, clock = make()
    own.renew(linked=True, addresses=(HOME, CIRCUITS[0]))
    sent = clock.time = own.next_at()
    assert own.take(clock.time)
    own.renew(linked=True, addresses=(HOME, *CIRCUITS[:2]))
    assert own.next_at() == sent + defaults.SLIGHT_S
    assert own.take(sent + defaults.SLIGHT_S - 1) is None
    clock.time = sent + 1
    own.renew(linked=True, addresses=(HOME, CIRCUITS[1]))
    assert own.next_at() == sent + 1 / defaults.OWN_ADDRESSES[1], (
        "peers know no circuit that is left"
    )
    clock.time = own.next_at()
    assert own.take(clock.time) == (own.sealed, False)


def test_a_slight_change_does_not_delay_an_urgent_one() -> None:
    own, clock = make()
    own.renew(linked=True, addresses=(HOME, CIRCUITS[0]))
    clock.time = own.next_at()
    assert own.take(clock.time)
    own.renew(linked=True, addresses=(HOME, *CIRCUITS))
    own.renew(linked=True, runs=(5,))
    assert own.take(clock.time) == (own.sealed, True)


@pytest.mark.parametrize(
    ("before", "after", "slight"),
    [
        ([HOME, CIRCUITS[0]], [HOME, *CIRCUITS], True),
        ([*WHERE, *CIRCUITS], [*WHERE], True),
        ([SIX, CIRCUITS[0]], [CIRCUITS[0]], True),
        ([HOME], [HOME, CIRCUITS[0]], False),
        ([CIRCUITS[0]], [*WHERE, CIRCUITS[0]], False),
        ([SIX], [SIX, *WHERE], False),
        ([*WHERE, CIRCUITS[0]], [str(Address("1.2.3.5", 4001, ME.peer)), CIRCUITS[0]], False),
        ([*CIRCUITS[:2]], [CIRCUITS[2]], False),
        ([], [], False),
    ],
)
def test_slight_changes(before: list[str], after: list[str], slight: bool) -> None:
    assert is_slight(tuple(before), tuple(after)) is slight


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
