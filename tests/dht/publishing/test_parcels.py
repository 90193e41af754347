"""parcels: messages are retried only while they are needed, and each ends once."""

import pytest

from shoal.dht import defaults
from shoal.dht.kademlia.messages import Aged, StoreRequest
from shoal.dht.lookup.query import Querier
from shoal.dht.publishing.parcels import Published, StoreQuery, WalkMessages
from shoal.dht.records.contact import Contact
from shoal.transport.rates import DialLimiter
from tests.dht.nodes import blob, contacts, entropy, record

ONE = record(blob(1))


class Sender:
    """Parcels for one record; `ended` are the contacts whose messages have ended."""

    def __init__(self, limiter: DialLimiter | None = None, linked: bool = False) -> None:
        self.result = Published(ONE)
        querier = Querier(entropy(), linked=lambda peer: linked)
        self.parcels = WalkMessages({ONE.place: self.result}, querier, limiter)
        self.ended: list[Contact] = []

    def put(self, contact: Contact) -> StoreQuery:
        query = StoreQuery(contact, StoreRequest((Aged(0, ONE.sealed),), None), (ONE,))
        self.result.sent.add(contact.peer)
        self.parcels.put(query, lambda: self.ended.append(contact))
        return query


def test_a_silent_node_is_asked_again_and_then_counts_as_failed() -> None:
    sender, (one,) = Sender(), contacts(1)
    query, now = sender.put(one), 0.0
    for _ in range(defaults.STORE_TRIES):
        assert sender.parcels.next(now) == [query]
        sender.parcels.failed(query, now)
        assert not sender.parcels.next(now)
        now = max(now, sender.parcels.wake_at(now)) if not sender.parcels.done else now
    assert sender.parcels.done and sender.parcels.silent == {one.peer}
    assert sender.result.failed == [one.peer] and sender.ended == [one]


def test_a_message_is_given_up_once_other_nodes_store_its_records() -> None:
    sender, (slow, *others) = Sender(), contacts(4)
    late, quick = sender.put(slow), [sender.put(each) for each in others]
    assert sender.parcels.next(0.0) == [late, *quick]
    for query in quick:
        sender.parcels.stored(query, [""], 1.0)
    assert sender.ended == others
    sender.parcels.drop_late(defaults.STORE_LATE / 2)
    assert not sender.parcels.done, "it is not late yet"
    sender.parcels.drop_late(defaults.STORE_LATE)
    assert sender.parcels.done and sender.ended == [*others, slow]
    sender.parcels.stored(late, [""], 9.0)
    assert slow.peer not in sender.result.kept, "a reply after the end is ignored"


def test_a_busy_node_gets_only_the_refused_records_again() -> None:
    sender, (one,) = Sender(), contacts(1)
    query = sender.put(one)
    sender.parcels.next(0.0)
    sender.parcels.stored(query, ["busy"], 0.0)
    assert sender.parcels.next(defaults.STORE_PAUSE / 2) == [] and not sender.ended
    (again,) = sender.parcels.next(defaults.STORE_PAUSE)
    assert again is not query and again.records == (ONE,)
    sender.parcels.stored(again, ["too-old"], 1.0)
    assert sender.result.refused == {one.peer: "too-old"} and sender.ended == [one]


@pytest.mark.parametrize("linked", [True, False])
def test_background_messages_wait_for_their_dials(linked: bool) -> None:
    sender, (one,) = Sender(DialLimiter(20.0, 0.0), linked), contacts(1)
    query = sender.put(one)
    assert sender.parcels.next(0.0) == ([query] if linked else [])
    assert linked or sender.parcels.wake_at(0.0) == 20.0
    assert sender.parcels.next(20.0) == ([] if linked else [query])
    assert sender.parcels.count == 1
