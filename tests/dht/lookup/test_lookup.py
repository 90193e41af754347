"""lookup: finds records over disjoint paths despite liars, within its limits."""

import itertools
from collections import Counter
from heapq import heappop, heappush

import pytest
from msgspec.structs import replace

from shoal.dht import defaults
from shoal.dht.kademlia.messages import Aged, Find, FindReply
from shoal.dht.lookup.lookup import Lookup
from shoal.dht.lookup.query import LookupSettings
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import Key, distance, key_at, point
from shoal.dht.records.record import Record
from shoal.transport.address import Address
from shoal.transport.identity import PeerId
from shoal.transport.rates import DialLimiter
from tests.dht.nodes import WALL, Net, Node, blob, contacts, entropy, look_up, peer, record, sealed


@pytest.fixture(scope="module")
def net() -> Net:
    return Net(300)


def fresh(net: Net) -> Net:
    for node in net.nodes.values():
        node.up, node.asked = True, 0
        node.store = Node(node.contact, 1).store
    net.delays = {}
    return net


def place(net: Net, one: Record, count: int = 20) -> None:
    for node in net.owners(one.key, count):
        assert not node.store.put(one, sender=one.author, network="", age=0.0, now=0.0, wall=WALL)


def test_a_record_is_found(net: Net) -> None:
    fresh(net)
    for number in range(30):
        one = record(blob(number))
        place(net, one)
        task = net.lookup([one.key], enough=1)
        net.run(task)
        assert [each.record for each in task.found(one.key)] == [one]
        assert len(task.steps) < 20
        hop = max(step.hop for step in task.steps if step.outcome == "records")
        assert hop <= 3


def test_several_keys_of_a_region_at_once(net: Net) -> None:
    fresh(net)
    one = record(blob(1))
    place(net, one)
    near = key_at(point(one.key) ^ 5)
    task = net.lookup([near, one.key], enough=1)
    net.run(task)  # ends although one key has no records
    assert task.found(near) == [] and task.found(one.key)[0].record == one
    handed = [step for step in task.steps if step.outcome == "records"]
    assert handed and all(step.handed == {near: 0, one.key: 1} for step in handed)


def test_a_look_up_of_missing_records_ends(net: Net) -> None:
    fresh(net)
    task = net.lookup([blob(7).key], enough=1)
    net.run(task)
    assert task.found(blob(7).key) == []
    assert 15 <= len(task.steps) <= 80


def test_a_node_without_contacts_ends_at_once() -> None:
    task = look_up([blob(1).key], [], 2**255, entropy(), enough=1)
    assert task.next(0.0) == [] and task.done


def test_the_nodes_of_the_region_are_found(net: Net) -> None:
    fresh(net)
    for number in range(20):
        key = blob(number).key
        task = net.lookup([key])
        net.run(task)
        true = [node.contact for node in net.owners(key, 20)]
        assert len(set(true) & set(task.region())) >= 19
        assert len(task.steps) < 40
        assert task.answerers() and len(set(task.answerers())) == len(task.answerers())


def test_no_contact_belongs_to_two_paths(net: Net) -> None:
    fresh(net)
    task = net.lookup([blob(3).key])
    net.run(task)
    assert max(Counter(step.contact for step in task.steps).values()) == 1
    assert {step.path for step in task.steps} == {0, 1, 2}


@pytest.mark.parametrize("paths", [3, 1])
def test_a_liar_spoils_one_path(paths: int) -> None:
    """The nearest contact names nothing but dead nodes. It spoils one of three disjoint paths, or
    the only one."""
    key = blob(1).key
    liars = [Contact(peer(70_000 + n), [Address("9.9.9.9", 1)]) for n in range(400)]
    liars.sort(key=lambda one: distance(one.key, key))
    honest = contacts(9)
    settings = LookupSettings(paths=paths, random_order=False, subnet_limits=False, queries=30)
    start = [liars[0], *honest]
    task = look_up([key], start, 2**240, entropy(), settings=settings, enough=1)
    asked: list[Contact] = []
    now = 0.0
    while queries := task.next(now):
        now += 0.1
        for query in queries:
            asked.append(query.contact)
            nearest = tuple(liars[1:20]) if query.contact is liars[0] else ()
            task.answered(query.contact, FindReply(((),), (nearest,)), now, WALL)
    assert (len(set(honest) & set(asked)) >= 6) == (paths == 3)


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_one_liar_cannot_decide_the_addresses_of_others(defended: bool, late: bool) -> None:
    """It replies first and names the nodes with the record at wrong addresses. Twin: if the first
    account counts, none of them is found."""
    key = blob(1).key
    liar, honest = Contact(peer(70_000), [Address("9.9.9.9", 1)]), contacts(2, 1)
    keepers = contacts(20, 100)
    false = [Contact(each.peer, [Address(f"8.8.{n}.8", 9)]) for n, each in enumerate(keepers)]
    settings = LookupSettings(accounts=defended)
    task = look_up([key], [liar, *honest], 2**256, entropy(), settings=settings, enough=1)
    one, now, asked = record(blob(1)), 0.0, Counter[PeerId]()
    waiting = task.next(now)
    while waiting:
        waiting.sort(key=lambda each: (each.contact != liar, (each.contact in honest) is late))
        contact = waiting.pop(0).contact
        asked[contact.peer] += 1
        now += 0.01
        if contact == liar or contact in honest:
            named = tuple(false if contact == liar else keepers)
            task.answered(contact, FindReply(((),), (named, ())), now, WALL)
        elif {*contact.addresses} & {each.addresses[0] for each in keepers}:
            task.answered(contact, FindReply(((Aged(1, one.sealed),),), ((), ())), now, WALL)
        else:
            task.failed(contact, now, "unreachable")
        waiting += task.next(now)
    assert task.done and bool(task.found(key)) is defended
    assert max(asked.values()) <= 3


def all_asked(task: Lookup, says: dict[Contact, tuple[Contact, ...]]) -> list[Contact]:
    """Run a look-up; return the queried contacts in order. Those not in `says` do not answer."""
    order: list[Contact] = []
    now = 0.0
    while queries := task.next(now):
        now += 0.1
        for query in queries:
            order.append(query.contact)
            if query.contact in says:
                task.answered(query.contact, FindReply(((),), (says[query.contact],)), now, WALL)
            else:
                task.failed(query.contact, now)
    return order


@pytest.mark.parametrize("doubt", [True, False])
def test_a_referrer_of_dead_contacts_is_believed_last(doubt: bool) -> None:
    """A liar has named twenty nodes that do not exist, an honest node nine that do."""
    ghosts, (liar, witness, *others) = tuple(contacts(20, 5_000)), contacts(11)
    settings = LookupSettings(paths=1, at_once=1, doubt=doubt)
    task = look_up([blob(1).key], [liar, witness], 2**256, entropy(), settings=settings, enough=1)
    answers = dict.fromkeys(others, tuple(others))
    order = all_asked(task, answers | {liar: ghosts, witness: tuple(others)})
    assert set(others) <= set(order)
    before = order[: max(map(order.index, others))]
    assert (len(set(ghosts) & set(before)) <= 2) == doubt


@pytest.mark.parametrize("doubt", [True, False])
def test_dead_contacts_are_skipped_once_the_region_has_answered(doubt: bool) -> None:
    ghosts, (liar, *others) = tuple(contacts(20, 5_000)), contacts(16)
    settings = LookupSettings(doubt=doubt)
    task = look_up([blob(1).key], [liar, *others], 2**256, entropy(), settings=settings, enough=1)
    order = all_asked(task, dict.fromkeys(others, tuple(others)) | {liar: ghosts})
    assert set(others) <= set(order)
    assert (len(set(ghosts) & set(order)) < 10) == doubt


@pytest.mark.parametrize("doubt", [True, False])
def test_one_referrer_is_not_enough_to_be_in_a_region(doubt: bool) -> None:
    ghosts, start = tuple(contacts(20, 5_000)), contacts(24)
    settings = LookupSettings(doubt=doubt)
    task = look_up([blob(1).key], start, 2**256, entropy(), settings=settings)
    liar = task.next(0.0)[0].contact
    task.answered(liar, FindReply(((),), (ghosts,)), 0.1, WALL)
    assert set(start) <= set(task.region())
    assert bool(set(ghosts) & set(task.region())) != doubt


def test_a_late_contact_that_answers_counts_as_alive() -> None:
    named, (witness, other) = contacts(4, 5_000), contacts(2)
    settings = LookupSettings(paths=1, at_once=1)
    task = look_up([blob(1).key], [witness, other], 2**256, entropy(), settings=settings)
    assert task.next(0.0)[0].contact in (witness, other)
    task.answered(witness, FindReply(((),), (tuple(named),)), 0.1, WALL)
    task.answered(other, FindReply(((),), ((),)), 0.1, WALL)
    asked = [query.contact for query in task.next(0.2)]
    for contact in asked:
        task.next(9.0)
        task.answered(contact, FindReply(((),), ((),)), 9.0, WALL)
    assert set(asked) <= set(task.region())


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("named", [20, 64])
def test_a_path_led_in_circles_leaves_the_others_their_share(defended: bool, named: int) -> None:
    """Fast liars name ever more liars, while honest nodes take 0.2 s and the record is five replies
    away. Twin: without shares, all queries or all contacts of the look-up are used up by then."""
    settings = LookupSettings(shares=defended)
    liar, *honest = contacts(3)
    hops = [tuple(contacts(2, 100 + 10 * n)) for n in range(5)]
    step = {each.peer: n for n, hop in enumerate(((honest), *hops)) for each in hop}
    one = record(blob(1))
    task = look_up([one.key], [liar, *honest], 2**256, entropy(), settings=settings, enough=1)
    waiting: list[tuple[float, int, Contact]] = []
    now, count = 0.0, 10_000
    while True:
        for query in task.next(now):
            count += 1
            slow = query.contact.peer in step
            heappush(waiting, (now + (0.2 if slow else 0.002), count, query.contact))
        if task.done or not waiting:
            break
        now, _, contact = heappop(waiting)
        if (hop := step.get(contact.peer)) is None:
            puppets = tuple(contacts(named, count + 1))
            count += named
            task.answered(contact, FindReply(((),), (puppets,)), now, WALL)
        elif hop == len(hops):
            task.answered(contact, FindReply(((Aged(1, one.sealed),),), ((),)), now, WALL)
        else:
            task.answered(contact, FindReply(((),), (hops[hop],)), now, WALL)
    assert bool(task.found(one.key)) is defended
    assert len(task.steps) <= settings.queries and len(task.known) <= defaults.LOOKUP_CONTACTS


def test_shares_that_other_paths_do_not_need_are_used() -> None:
    """All paths but one have no candidate left."""
    settings = LookupSettings()
    first, *rest = contacts(settings.queries + 20)
    task = look_up([blob(1).key], [first], 2**256, entropy(), settings=settings, enough=1)
    now = 0.0
    while queries := task.next(now):
        now += 0.1
        for query in queries:
            more, rest = tuple(rest[:9]), rest[9:]
            task.answered(query.contact, FindReply(((),), (more,)), now, WALL)
    assert len(task.steps) == settings.queries


@pytest.mark.parametrize("defended", [True, False])
def test_contacts_of_one_reply_are_limited(monkeypatch: pytest.MonkeyPatch, defended: bool) -> None:
    """Twin: without the limit all contacts of the reply are accepted."""
    if not defended:
        monkeypatch.setattr(defaults, "ANSWER_CONTACTS", 10_000)
    start = contacts(2)
    crowd = contacts(300, 5_000)
    task = look_up([blob(1).key, blob(1).key], start, 2**256, entropy())
    query = task.next(0.0)[0]
    task.answered(
        query.contact, FindReply(((), ()), (tuple(crowd[:150]), tuple(crowd[150:]))), 0, WALL
    )
    assert task.steps[0].contacts == (64 if defended else 300)


def test_one_network_is_not_queried_first_again_and_again() -> None:
    key = blob(1).key
    crowd = [Contact(peer(80_000 + n), [Address(f"9.9.9.{n}", 1)]) for n in range(1, 13)]
    others = contacts(12)
    for limited in (True, False):
        settings = LookupSettings(paths=1, random_order=False, subnet_limits=limited)
        start = [*crowd, *others] if limited else [*others, *crowd]
        task = look_up([key], start, 0, entropy(), settings=settings, enough=1)
        order: list[Contact] = []
        while queries := task.next(0.0):
            for query in queries:
                order.append(query.contact)
                task.answered(query.contact, FindReply(((),), ((),)), 0.0, WALL)
        first = sum(one in crowd for one in order[:10])
        assert (first == 2) if limited else (first > 2)


def test_nodes_of_the_region_are_queried_in_random_order(net: Net) -> None:
    """Otherwise every look-up would query the node nearest to the key first."""
    fresh(net)
    key = blob(5).key
    nearest = net.owners(key, 1)[0]
    firsts = []
    for _ in range(30):
        task = net.lookup([key], enough=1)
        net.run(task)
        order = [
            step.contact for step in task.steps if distance(step.contact.key, key) <= task.radius
        ]
        firsts.append(order.index(nearest.contact) if nearest.contact in order else len(order))
    assert sum(first < 3 for first in firsts) < 15


def test_late_replies_do_not_delay_a_look_up(net: Net) -> None:
    fresh(net)
    one = record(blob(9))
    place(net, one)
    slow = {node.contact.peer for node in list(net.nodes.values())[::2]}
    net.delays = dict.fromkeys(slow, 30.0)
    for _ in range(10):
        net.now = 0.0
        task = net.lookup([one.key], enough=1)
        net.run(task)
        assert task.found(one.key) and net.now < 6.0


@pytest.mark.parametrize(("took", "end"), [(0.1, 1.5), (1.2, 2.4), (3.0, 4.0), (None, 4.0)])
def test_without_other_candidates_it_waits_shortly_for_late_replies(
    took: float | None, end: float
) -> None:
    """Twice as long as the slowest reply took, or the maximum if there was none."""
    quick, silent = contacts(2)
    task = look_up([blob(1).key], [quick, silent], 2**256, entropy(), enough=1)
    assert len(task.next(0.0)) == 2
    if took is not None:
        task.answered(quick, FindReply(((),), ((),)), took, WALL)
        task.next(took)
    now = took or 0.0
    while not task.done:
        now = task.wake_at(now)
        assert task.next(now) == []
    assert now == end


def test_records_are_found_while_a_third_of_the_nodes_is_down(net: Net) -> None:
    fresh(net)
    records = [record(blob(number)) for number in range(20)]
    for one in records:
        place(net, one)
    for node in list(net.nodes.values())[::3]:
        node.up = False
    for one in records:
        task = net.lookup([one.key], enough=1)
        net.run(task)
        assert task.found(one.key)
        assert {step.outcome for step in task.steps} <= {
            "",
            "records",
            "contacts",
            "nothing",
            "failed",
        }


def answer(task: Lookup, *listed: Aged, nearest: tuple[Contact, ...] = ()) -> str:
    """Reply to a pending query, or to the next one."""
    task.next(0.0)
    step = next(step for step in task.steps if step.answered is None)
    return task.answered(step.contact, FindReply((listed,), (nearest,)), 0.0, WALL)


def one_key(key: Key) -> Lookup:
    return look_up([key], contacts(30), 2**256, entropy(), enough=1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"junk", "bad-signature"),
        (sealed(blob(1))[:-1] + b"\0", "bad-signature"),
        (sealed(blob(2)), "bad-type"),  # a record of another key
    ],
)
def test_a_reply_with_an_invalid_record_is_ignored(data: bytes, code: str) -> None:
    task = one_key(blob(1).key)
    more = tuple(contacts(5, 900))
    assert answer(task, Aged(0, data), nearest=more) == code
    assert task.steps[0].outcome == code
    assert not set(more) & set(task.region())
    assert task.found(blob(1).key) == []


@pytest.mark.parametrize("defended", [True, False])
def test_a_liar_that_invents_authors_does_not_end_a_look_up(defended: bool) -> None:
    """It replies first, with records of as many authors as are wanted. Twin: if their number is
    enough, the honest record is not found."""
    settings = LookupSettings(witnesses=defended)
    liar, *honest = contacts(6)
    one = record(blob(1))
    forged = tuple(Aged(0, sealed(blob(1), 100 + n)) for n in range(16))
    task = look_up([one.key], [liar, *honest], 2**256, entropy(), settings=settings, enough=16)
    now = 0.0
    while queries := task.next(now):
        now += 0.1
        for query in sorted(queries, key=lambda each: each.contact != liar):
            says = forged if query.contact == liar else (Aged(1, one.sealed),)
            if query.contact == liar or query.contact in honest:
                task.answered(query.contact, FindReply((says,), ((),)), now, WALL)
            if task.done:
                break
    assert (one in [each.record for each in task.found(one.key)]) is defended


def test_enough_counts_authors() -> None:
    task = look_up([blob(1).key], contacts(9), 2**256, entropy(), enough=2)
    answer(task, Aged(0, sealed(blob(1))))
    answer(task, Aged(0, sealed(blob(1), made=WALL + 1)))
    assert not task.done
    answer(task, Aged(0, sealed(blob(1), 2)))
    assert task.done and task.next(0.0) == []


def test_unrequested_replies_change_nothing() -> None:
    task = one_key(blob(1).key)
    stranger = contacts(1, 999)[0]
    task.answered(stranger, FindReply(((Aged(0, sealed(blob(1))),),), ((),)), 0.0, WALL)
    task.failed(stranger, 0.0)
    query = task.next(0.0)[0]
    task.failed(query.contact, 0.0)
    task.answered(query.contact, FindReply(((Aged(0, sealed(blob(1))),),), ((),)), 0.0, WALL)
    assert task.found(blob(1).key) == []


def test_a_look_up_ends_however_many_contacts_are_named() -> None:
    """Each reply names twenty more, ever nearer."""
    key = blob(1).key
    settings = LookupSettings()
    task = look_up([key], contacts(3), 2**256, entropy(), settings=settings, enough=1)
    number, now = 10_000, 0.0
    while queries := task.next(now):
        now += 0.1
        for query in queries:
            number += 20
            more = tuple(Contact(peer(number + n)) for n in range(20))
            task.answered(query.contact, FindReply(((),), (more,)), now, WALL)
    assert task.done
    assert len(task.steps) <= settings.queries
    assert len(task.known) <= defaults.LOOKUP_CONTACTS


def test_linked_contacts_are_preferred(net: Net) -> None:
    fresh(net)
    asker = net.any()
    linked: set[PeerId] = {one.peer for one in list(asker.table.contacts())[::4]}
    shares = []
    for prefer in (True, False):
        first = 0
        for number in range(40):
            task = net.lookup(
                [blob(number).key],
                asker,
                linked=linked.__contains__ if prefer else lambda peer: False,
            )
            first += sum(query.contact.peer in linked for query in task.next(0.0))
        shares.append(first)
    assert shares[0] > 1.5 * shares[1]


def test_a_linked_node_of_the_region_is_queried_alone_first() -> None:
    """It should have the record. Its path sends a second query only if it lacks it or is late."""
    listed = contacts(12)

    def begun(linked: bool, radius: float = 2**256, enough: int = 1) -> Lookup:
        return look_up(
            [blob(1).key], listed, radius, entropy(), linked=lambda peer: linked, enough=enough
        )

    assert len(begun(False).next(0.0)) == defaults.PATHS * defaults.PATH_ASKED
    assert len(begun(True, radius=0).next(0.0)) == defaults.PATHS * defaults.PATH_ASKED
    assert len(begun(True, enough=0).next(0.0)) == defaults.PATHS * defaults.PATH_ASKED
    task = begun(True)
    first = task.next(0.0)
    assert len(first) == defaults.PATHS
    assert task.next(0.1) == []
    task.answered(first[0].contact, FindReply(((),), ((), ())), 0.2, WALL)
    assert len(task.next(0.2)) == defaults.PATH_ASKED
    task.failed(first[1].contact, 0.3)
    assert len(task.next(0.3)) == defaults.PATH_ASKED
    assert len(task.next(defaults.HEDGE)) == defaults.PATH_ASKED  # hedges the late one


def test_contents_of_a_query(net: Net) -> None:
    me = contacts(1)[0].packed
    task = net.lookup([blob(1).key], enough=3, most=7, kinds=("blob",), serves=me)
    find = task.next(0.0)[0].find
    assert replace(find, near=()) == Find((blob(1).key,), (), 7, ("blob",), me)
    assert len(find.near) == 1
    assert distance(find.near[0], blob(1).key) <= task.radius
    assert net.lookup([blob(1).key]).next(0.0)[0].find.most == 0


def test_requested_positions_cover_the_region(net: Net) -> None:
    task = net.lookup([blob(1).key])
    far = 0
    for _ in range(200):
        far += distance(task.own_place(), blob(1).key) > task.radius / 2
    assert 70 < far < 130


def linked_to(net: Net, count: int) -> set[PeerId]:
    return set(net.random.sample(sorted(net.nodes), count))


def test_a_background_look_up_uses_existing_links(net: Net) -> None:
    """Linked nodes name the region's nodes, so few are dialled. Twin: a look-up without a rate
    limiter dials most of the nodes that it queries."""
    fresh(net)
    key = blob(31).key
    linked = {node.contact.peer for node in net.owners(key, 60)[::5]} | linked_to(net, 12)
    for limiter, most in ((DialLimiter(20.0, net.now), 3), (None, 40)):
        task = net.lookup([key], linked=linked.__contains__, limiter=limiter)
        net.run(task)
        dialled = [step for step in task.steps if step.contact.peer not in linked]
        assert (len(dialled) <= 3) is (limiter is not None) and len(dialled) <= most
        true = {node.contact for node in net.owners(key, 20)}
        assert len(true & set(task.region())) >= 19


def test_a_background_look_up_dials_at_a_limited_rate(net: Net) -> None:
    """Without any link it still reaches the region, and stops after a few replies from it."""
    fresh(net)
    task = net.lookup([blob(32).key], limiter=DialLimiter(20.0, net.now))
    began = net.now
    net.run(task)
    asked = [step.asked for step in task.steps]
    assert asked[0] == began + 20
    assert all(b - a >= 20 for a, b in itertools.pairwise(asked))
    inside = [
        step for step in task.steps if distance(step.contact.key, task.keys[0]) <= task.radius
    ]
    assert len(inside) == defaults.PATIENT_INSIDE and len(task.steps) < 10


def test_a_background_look_up_dials_no_relay() -> None:
    relay = Address("8.8.8.8", 4001, peer(9))
    hidden = [Contact(peer(n), [relay.through(peer(n))]) for n in range(10, 14)]
    key = blob(33).key
    task = look_up([key], hidden, 2**256, entropy(), limiter=DialLimiter(20.0, 0.0))
    assert task.next(100.0) == [] and task.done
    assert look_up([key], hidden, 2**256, entropy()).next(100.0), "a user waits for this one"


def test_contacts_behind_a_relay_are_queried_last() -> None:
    """A home node is not queried while a public node can answer."""
    relay = Address("8.8.8.8", 4001, peer(9))
    hidden = [Contact(peer(n), [relay.through(peer(n))]) for n in range(10, 20)]
    settings = LookupSettings(paths=1, at_once=3)
    start = [*hidden, *contacts(3, first=50)]
    task = look_up([blob(34).key], start, 2**256, entropy(), settings=settings, enough=1)
    assert {query.contact for query in task.next(0.0)} == set(contacts(3, first=50))


def test_a_background_look_up_ends_while_all_contacts_are_unreachable(net: Net) -> None:
    fresh(net)
    for node in net.nodes.values():
        node.up = False
    task = look_up(
        [blob(35).key], contacts(60), 2**256, entropy(), limiter=DialLimiter(20.0, net.now)
    )
    net.run(task)
    assert len(task.steps) == defaults.PATIENT_DIALS
    fresh(net)
