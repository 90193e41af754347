"""ownrecords: what is announced, when again, and which records outlive the process."""

from math import inf

import pytest

from shoal.dht import defaults
from shoal.dht.errors import BadRecord
from shoal.dht.publishing.own import OwnRecords
from shoal.dht.records.record import NameBody, PeerBody, ShardBody, open_record, seal_record
from shoal.transport.identity import Identity

ME, OTHER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))
WALL = 1_700_000_000.0
TTL = 600
HERE = PeerBody(ME.peer, ("/ip4/1.2.3.4/tcp/1",))


def shard(start: int) -> ShardBody:
    return ShardBody("ab" * 32, start, start + 1, False, False, "float32", 0.0)


def said(body: PeerBody | ShardBody | NameBody, *, lasting: bool = True) -> OwnRecords:
    own = OwnRecords(ME)
    assert own.publish(body, TTL, lasting=lasting, now=0.0, wall=WALL)
    return own


def announce(own: OwnRecords, now: float, kept: int, wanted: int = 20) -> list[float]:
    """Announce what is due; return when each record is due again."""
    due = own.due(now)
    for each in due:
        own.sealed(each, WALL + now)
        own.announced(each, kept, wanted, now, jitter=0.0)
    return [each.due for each in due]


def test_a_new_record_is_due_at_once_and_again_before_it_expires() -> None:
    own = said(HERE)
    assert announce(own, 5.0, kept=20) == [5.0 + TTL * defaults.AGAIN]
    assert own.due(6.0) == [] and own.next_due() == 5.0 + TTL * defaults.AGAIN


def test_publishing_the_same_record_again_changes_nothing() -> None:
    own = said(HERE)
    assert not own.publish(HERE, TTL, lasting=True, now=1.0, wall=WALL + 1)
    moved = PeerBody(ME.peer, ("/ip4/1.2.3.5/tcp/1",))
    assert own.publish(moved, TTL, lasting=True, now=1.0, wall=WALL - 50)
    (mine,) = own
    assert mine.record.body == moved and len(own) == 1
    assert mine.record.made == WALL * 1000 + 1, "later, although the clock was set back"


def test_each_announcement_is_sealed_again_to_extend_its_life() -> None:
    own = said(HERE)
    (mine,) = own.due(0.0)
    first = open_record(own.sealed(mine, WALL))
    own.announced(mine, 20, 20, 0.0, 0.0)
    changed = own.changed
    again = open_record(own.sealed(mine, WALL + 300))
    assert again.made == first.made + 300_000 and again.body == first.body
    assert own.changed > changed


def test_too_few_acknowledgements_are_retried_with_growing_pauses() -> None:
    own = said(HERE)
    first, most = defaults.REPAIR_PAUSE
    now, pauses = 0.0, []
    for _ in range(12):
        (due,) = announce(own, now, kept=9)
        pauses.append(due - now)
        now = due
    assert pauses[:3] == [first, 2 * first, 4 * first] and pauses[-1] == most
    assert announce(own, now, kept=10) == [now + TTL * defaults.AGAIN]


def test_a_record_that_no_node_stored_for_long_is_sealed_again() -> None:
    """Otherwise every node would refuse it as expired once they are back."""
    own = said(HERE)
    announce(own, 0.0, kept=0)
    (mine,) = own
    assert open_record(own.sealed(mine, WALL + 10 * TTL)).made == (WALL + 10 * TTL) * 1000


def test_it_retries_while_no_other_node_serves() -> None:
    own = said(HERE)
    (due,) = announce(own, 0.0, kept=0, wanted=0)
    assert due == defaults.REPAIR_PAUSE[0], "a serving node may join"


def test_records_that_are_nearly_due_go_along() -> None:
    own = said(HERE)
    announce(own, 0.0, kept=20)
    own.publish(shard(0), TTL, lasting=True, now=20.0, wall=WALL + 20)
    announce(own, 20.0, kept=20)
    half = TTL * defaults.AGAIN
    assert len(own.due(half)) == 2
    own = said(HERE)
    announce(own, 0.0, kept=20)
    own.publish(shard(0), TTL, lasting=True, now=half - 10, wall=WALL)
    assert [each.record.body for each in own.due(half - 10)] == [shard(0)], "a new one goes alone"


def test_a_withdrawal_is_kept_until_every_node_has_forgotten() -> None:
    own = said(HERE)
    announce(own, 0.0, kept=20)
    assert own.withdraw(HERE.key, HERE.slot, now=10.0, wall=WALL)
    assert not own.withdraw(HERE.key, HERE.slot, now=10.0, wall=WALL)
    assert own.at(HERE.key) == []
    (mine,) = own.due(10.0)
    assert open_record(own.sealed(mine, WALL)).gone
    own.announced(mine, 20, 20, 10.0, 0.0)
    assert mine.due == inf
    assert own.due(10.0 + defaults.LIVES * TTL) == [] and len(own) == 0


def test_a_withdrawn_record_may_be_published_again() -> None:
    own = said(HERE)
    own.withdraw(HERE.key, HERE.slot, now=1.0, wall=WALL)
    assert own.publish(HERE, TTL, lasting=True, now=2.0, wall=WALL)
    (mine,) = own
    assert not mine.record.gone and mine.record.made == WALL * 1000 + 2


def test_more_slots_than_nodes_store_are_refused_at_once() -> None:
    own = OwnRecords(ME)
    for start in range(defaults.SLOTS["shard"]):
        own.publish(shard(start), TTL, lasting=True, now=0.0, wall=WALL)
    with pytest.raises(BadRecord, match="4 records of an author"):
        own.publish(shard(9), TTL, lasting=True, now=0.0, wall=WALL)
    own.withdraw(shard(0).key, shard(0).slot, now=0.0, wall=WALL)
    own.publish(shard(9), TTL, lasting=True, now=0.0, wall=WALL)
    assert len(own.at(shard(9).key)) == defaults.SLOTS["shard"]


def restarted(own: OwnRecords, later: float) -> OwnRecords:
    kept = [(open_record(sealed), lasting) for sealed, lasting in own.dump()]
    after = OwnRecords(ME)
    after.restore(kept, now=0.0, wall=WALL + later)
    return after


def test_a_restart_announces_lasting_records_and_withdraws_the_others() -> None:
    own = said(NameBody("tiny", "ab" * 32, 6, 1))
    own.publish(shard(0), TTL, lasting=False, now=0.0, wall=WALL)
    after = restarted(own, 5.0)
    found = {each.record.body.kind: open_record(after.sealed(each, WALL + 5)) for each in after}
    assert not found["name"].gone and found["name"].made == (WALL + 5) * 1000
    assert found["shard"].gone and len(after.due(0.0)) == 2
    assert after.publish(shard(0), TTL, lasting=False, now=0.0, wall=WALL + 5)
    assert [each.record.gone for each in after.at(shard(0).key)] == [False]


def test_after_a_long_pause_nothing_needs_withdrawing() -> None:
    after = restarted(said(shard(0), lasting=False), 3 * TTL)
    assert len(after) == 0
    lasting = restarted(said(shard(0)), 3 * TTL)
    (mine,) = lasting.due(0.0)
    assert open_record(lasting.sealed(mine, WALL + 3 * TTL)).made == (WALL + 3 * TTL) * 1000


def test_a_withdrawal_outlives_a_restart() -> None:
    own = said(HERE)
    own.withdraw(HERE.key, HERE.slot, now=1.0, wall=WALL + 1)
    (mine,) = restarted(own, 10.0)
    assert mine.record.gone and mine.ends == pytest.approx(defaults.LIVES * TTL - 9, abs=1.1)


def test_a_record_of_another_author_in_the_file_is_ignored() -> None:
    sealed = seal_record(OTHER, shard(0), made=1, ttl=TTL)
    own = OwnRecords(ME)
    own.restore([(open_record(sealed), True)], now=0.0, wall=WALL)
    assert len(own) == 0


def test_a_change_of_the_network_ends_the_pause() -> None:
    own = said(HERE)
    for now in (0.0, 10.0, 20.0, 40.0):
        announce(own, now, kept=0)
    own.hurry(41.0)
    assert own.next_due() == 41.0


def test_the_result_of_a_replaced_record_is_ignored() -> None:
    own = said(HERE)
    (mine,) = own.due(0.0)
    own.publish(PeerBody(ME.peer, ()), TTL, lasting=True, now=1.0, wall=WALL)
    own.announced(mine, 20, 20, 2.0, 0.0)
    assert own.next_due() == 1.0


def test_records_stored_at_few_nodes_are_announced_again_as_the_network_grows() -> None:
    """Each time the number of known nodes doubles, until there are enough of them."""
    own, times = said(HERE), 0
    (mine,) = own
    assert not own.grown(50, 0.0), "it has not been announced yet"
    for size in range(1, 200):
        own.grown(size, float(size))
        if announce(own, float(size), kept=min(size, 20), wanted=min(size, 20)):
            mine.known, times = size, times + 1
    assert times == 5, "at 1, 2, 4, 8 and 16"
    own.withdraw(*mine.slot, now=250.0, wall=WALL + 250)
    announce(own, 251.0, kept=20)
    assert not own.grown(200, 252.0) and not own.due(252.0), "a withdrawal is not repeated"


def moved(own: OwnRecords, now: float, number: int) -> float:
    """Publish a patient record with a new address; return when it is due."""
    body = PeerBody(ME.peer, (f"/ip4/1.2.3.{number}/tcp/1",))
    assert own.publish(body, TTL, lasting=False, patient=True, now=now, wall=WALL + now)
    (mine,) = own
    return mine.due


def test_a_patient_record_is_announced_once_after_several_changes() -> None:
    """A starting node learns its addresses one by one. Constant change does not postpone it."""
    own = OwnRecords(ME)
    assert moved(own, 0.0, 1) == defaults.SAY_AFTER
    assert [moved(own, float(n), n) for n in range(2, 10)] == [defaults.SAY_AFTER] * 8
    assert own.due(defaults.SAY_AFTER - 1) == []
    announce(own, defaults.SAY_AFTER, kept=20)
    assert moved(own, 16.0, 1) == defaults.SAY_AFTER + defaults.SAY_PAUSE
    assert moved(own, 400.0, 2) == defaults.SAY_AFTER + defaults.SAY_PAUSE, "already due"
    (walking,) = own
    walking.walking = True
    assert moved(own, 401.0, 3) == 401.0 + defaults.SAY_AFTER
    own.announced(walking, 20, 20, 410.0, jitter=0.0)
    assert [each.due for each in own] == [410.0 + defaults.SAY_PAUSE]
    announce(own, 480.0, kept=20)
    assert moved(own, 600.0, 4) == 600.0 + defaults.SAY_AFTER
    (mine,) = own
    own.withdraw(mine.record.key, mine.record.slot, now=601.0, wall=WALL)
    assert [each.due for each in own] == [601.0], "a withdrawal does not wait"


def test_a_patient_record_pauses_between_announcements() -> None:
    own = OwnRecords(ME)
    moved(own, 0.0, 1)
    (again,) = announce(own, 15.0, kept=0)
    assert again >= 15.0 + 0.75 * defaults.SAY_PAUSE
    (mine,) = own
    mine.known = 2
    announce(own, again, kept=2, wanted=2)
    assert own.grown(8, again + 1) and mine.due == again + defaults.SAY_PAUSE
    assert not own.grown(8, again + 2), "already rescheduled"
