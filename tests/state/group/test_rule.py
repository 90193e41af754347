"""The rule decides the members, their seniority, and the allowed revocations."""

from collections.abc import Mapping

import pytest

from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import Head
from shoal.state.group import rule
from shoal.state.group.facts import (
    Grant,
    GroupFacts,
    Role,
    grant_fact,
    grant_key,
    revocation_fact,
    revocation_key,
)
from shoal.state.group.rule import Order, decide
from shoal.transport.identity import Identity, PeerId, peer_id_of
from tests.state.group.people import CLIENT, OPERATOR, OWNER, Person, in_order, peers, said

from ...cost import cost

FOUNDER, *OTHERS = [Person(number) for number in range(1, 9)]
A, B, C, D, E, F, G = in_order(OTHERS)
END = Head(5, 3, b"h" * 32)


def grants(**roles: Role) -> dict[str, dict[str, object]]:
    """Return the facts that grant roles to members by their letters."""
    people: Mapping[str, Person] = globals()
    return {
        grant_key(people[name].peer): grant_fact(role, people[name].box, 7)
        for name, role in roles.items()
    }


def revokes(*people: Person, ends: Mapping[Plot, Head] | None = None) -> dict[str, object]:
    return {revocation_key(each.peer): revocation_fact(ends or {}, 8) for each in people}


def group(feeds: Mapping[Person, Mapping[str, object]]) -> Order:
    return decide(FOUNDER.peer, {who.peer: said(facts) for who, facts in feeds.items()})  # type: ignore[arg-type]


def test_the_founder_is_a_member_by_itself() -> None:
    order = group({})
    assert [(each.peer, each.role) for each in order.members()] == [(FOUNDER.peer, OWNER)]


def test_each_role_grants_only_what_it_may() -> None:
    order = group(
        {
            FOUNDER: grants(A=OWNER, B=OPERATOR, C=CLIENT),
            A: grants(D=OWNER),
            B: grants(E=CLIENT, F=OPERATOR),
            C: grants(G=CLIENT),
        }
    )
    roles = {each.peer: each.role for each in order.members()}
    assert roles == {
        FOUNDER.peer: OWNER, A.peer: OWNER, D.peer: OWNER,
        B.peer: OPERATOR, C.peer: CLIENT, E.peer: CLIENT,
    }  # fmt: skip
    assert order.standings[E.peer].by == B.peer
    assert list(order.standings) == peers(FOUNDER, A, D, B, C, E)


def test_the_highest_role_counts_whoever_granted_it() -> None:
    order = group({FOUNDER: grants(A=OWNER, B=OPERATOR, C=CLIENT), A: grants(B=CLIENT, C=OPERATOR)})
    assert (order.role(B.peer), order.role(C.peer)) == (OPERATOR, OPERATOR)
    assert order.standings[C.peer].by == A.peer


def test_a_revocation_removes_the_role_and_not_earlier_grants() -> None:
    order = group(
        {
            FOUNDER: {**grants(A=OWNER), **revokes(A, ends={("group", 0): END})},
            A: grants(B=OPERATOR),
        }
    )
    assert order.role(A.peer) is None
    assert order.role(B.peer) is OPERATOR
    assert order.ends() == {A.key: {("group", 0): END}}


def test_two_owners_that_revoke_each_other_need_no_clock() -> None:
    order = group({FOUNDER: grants(A=OWNER, B=OWNER), A: revokes(B), B: revokes(A)})
    assert (order.role(A.peer), order.role(B.peer)) == (OWNER, None)


def test_no_member_revokes_a_senior_one() -> None:
    order = group(
        {
            FOUNDER: grants(A=OWNER, C=OPERATOR),
            A: {**grants(B=OWNER), **revokes(FOUNDER)},
            B: revokes(A, FOUNDER, B),
            C: revokes(D),
        }
    )
    assert dict(order.revoked) == {}


def test_a_stranger_can_be_revoked_before_any_grant() -> None:
    order = group({FOUNDER: {**grants(A=OPERATOR), **revokes(B)}, A: grants(B=CLIENT)})
    assert order.role(B.peer) is None
    assert B.peer in order.revoked


def test_the_most_senior_revocation_sets_the_end() -> None:
    ends: dict[Plot, Head] = {("jobs", 0): END}
    order = group(
        {
            FOUNDER: {**grants(A=OWNER, B=OWNER), **revokes(C, ends=ends)},
            A: revokes(C),
            B: revokes(C),
        }
    )
    assert order.ends() == {C.key: ends}


def test_grants_of_non_members_do_not_count() -> None:
    order = group({FOUNDER: grants(A=CLIENT), B: grants(C=OWNER), A: grants(D=OWNER)})
    assert [each.peer for each in order.members()] == peers(FOUNDER, A)


def crowd(count: int) -> list[PeerId]:
    return [Identity.from_seed((1000 + number).to_bytes(32)).peer for number in range(count)]


def test_clients_of_one_operator_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "OPERATOR_CLIENTS", 5)
    many = {grant_key(peer): grant_fact(CLIENT, b"b" * 32, 0) for peer in crowd(9)}
    order = group({FOUNDER: grants(A=OPERATOR), A: many})
    assert sum(each.role is CLIENT for each in order.members()) == 5
    unbounded = group({FOUNDER: grants(A=OWNER), A: many})
    assert sum(each.role is CLIENT for each in unbounded.members()) == 9


def test_no_key_is_decoded_for_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if ids are decoded for sorting: the grants of 100 operators would take a second."""
    some = [Person(number) for number in range(100, 400)]
    assert sorted(each.peer for each in some) == [each.peer for each in in_order(some)]

    def decoded(peer: PeerId) -> bytes:
        raise AssertionError(peer)

    monkeypatch.setattr(rule, "public_key_of", decoded)
    order = group({FOUNDER: grants(A=OPERATOR, B=OWNER), B: grants(C=CLIENT, D=OWNER)})
    assert list(order.standings) == [each.peer for each in (FOUNDER, B, D, A, C)]


def test_members_of_a_group_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "GROUP_MEMBERS", 6)
    monkeypatch.setattr(defaults, "GROUP_OWNERS", 3)
    owners = {grant_key(peer): grant_fact(OWNER, b"b" * 32, 0) for peer in crowd(4)}
    clients = {grant_key(peer): grant_fact(CLIENT, b"b" * 32, 0) for peer in crowd(20)[4:]}
    order = group({FOUNDER: {**owners, **clients}})
    assert sum(each.role is OWNER for each in order.members()) == 3
    assert len(order.standings) == 6


def test_a_revoked_owner_that_filled_the_group_blocks_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "GROUP_MEMBERS", 12)
    monkeypatch.setattr(defaults, "GROUP_OWNERS", 5)
    low = [peer_id_of(bytes(31) + bytes((number,))) for number in range(1, 40)]
    owners = {grant_key(peer): grant_fact(OWNER, b"b" * 32, 0) for peer in low[:9]}
    operators = {grant_key(peer): grant_fact(OPERATOR, b"b" * 32, 0) for peer in low[9:]}
    feeds: dict[Person, Mapping[str, object]] = {
        FOUNDER: grants(A=OWNER, B=OWNER, C=OPERATOR),
        A: {**owners, **operators},  # more senior than B
        B: grants(D=OWNER, E=OPERATOR, F=CLIENT),
    }
    order = group(feeds)
    assert len(order.standings) == 12
    assert order.role(C.peer) is OPERATOR, (
        "a member admitted by the founder stays whatever others do"
    )
    feeds[FOUNDER] = {**feeds[FOUNDER], **revokes(A)}
    order = group(feeds)
    assert [order.role(each.peer) for each in (D, E)] == [OWNER, OPERATOR]
    assert len(order.standings) == 12, "its own members come last, as far as they fit"


def test_the_maximum_of_grants_is_decided_quickly() -> None:
    """64 feeds are full of grants. To read and sort all of them would take a third of a second."""
    keys = [peer_id_of(number.to_bytes(32)) for number in range(1, 64 * 2200)]
    owners, rest = keys[:63], keys[63:]
    feeds = {FOUNDER.peer: GroupFacts(grants=dict.fromkeys(owners, Grant(OWNER, b"b" * 32, 0)))}
    for number, owner in enumerate(owners):
        some = rest[2200 * number :][:2200]
        feeds[owner] = GroupFacts(grants=dict.fromkeys(some, Grant(OPERATOR, b"b" * 32, 0)))
    took = []
    for _ in range(3):  # a garbage collection takes as long
        with cost() as spent:
            assert len(decide(FOUNDER.peer, feeds).standings) == defaults.GROUP_MEMBERS
        took.append(spent.reference_ms)
    assert min(took) < 50


def test_without_the_order_both_owners_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Anybody(rule._Pass):
        def _owners_after(
            self, level: list[PeerId], placed: set[PeerId], most: int
        ) -> list[PeerId]:
            found = super()._owners_after(level, placed, most)
            for peer in level:
                for other, revocation in self._of(peer).revoked.items():
                    self._revoked.setdefault(other, (peer, revocation))
            return found

    monkeypatch.setattr(rule, "_Pass", Anybody)
    order = group({FOUNDER: grants(A=OWNER, B=OWNER), A: revokes(B), B: revokes(A)})
    assert order.role(A.peer) is order.role(B.peer) is None


def test_no_facts_make_an_empty_group() -> None:
    assert decide(FOUNDER.peer, {FOUNDER.peer: GroupFacts()}).role(A.peer) is None
