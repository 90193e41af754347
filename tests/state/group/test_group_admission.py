"""Admission to a private group needs a secret and membership by this node's own list."""

import pytest

from shoal.state.group.group import GroupAdmission
from shoal.state.group.sealing import mark_of
from shoal.transport.handshake.hello import (
    FURTHER,
    INVITATION,
    SWARM,
    Admission,
    Admitted,
    Binding,
    Hello,
    Invited,
    admit,
    confirm,
    invitation_ident,
)
from shoal.transport.lane.events import GrantedLimits
from tests.state.fake_feeds import FakeNetwork, at_once
from tests.state.group.people import CLIENT, Follower, Person

FOUNDER, ME, FRIEND, STRANGER = Person(1), Person(90), Person(3), Person(4)
OLD, NEW, NEXT = b"o" * 32, b"n" * 32, b"x" * 32


def node(number: int = 90, *secrets: bytes, members: tuple[Person, ...] = (ME, FRIEND)) -> Follower:
    """Return a member that knows these secrets, the newest last."""
    founder = Person(1)
    it = Follower(FakeNetwork(), number, founder)
    at_once(it.replica.linked(founder.peer))
    at_once(it.take(founder.found(), *(founder.grant(each, CLIENT) for each in members)))
    for at, secret in enumerate(secrets or (OLD,), 1):
        it.group.secrets.add(at, secret)
    it.founder = founder  # type: ignore[attr-defined]
    return it


def hello(admission: Admission, binding: Binding) -> Hello:
    assert admission.secret is not None
    secrets = (admission.secret, *admission.further)
    first, *further = (each.prove("dialler", binding) for each in secrets)
    told = Hello((1, 1), b"i" * 16, GrantedLimits(1, 1, 1), admission.swarm, token=first,
                 further=tuple(further))  # fmt: skip
    return Hello.decode(told.encode())


def meet(dialler: Admission, listener: Admission, who: Person = FRIEND) -> Admitted | str:
    """Return the listener's reply to a dialler."""
    binding = Binding(b"e" * 32, who.peer, ME.peer)
    judged = admit(listener, hello(dialler, binding), binding)
    return judged if isinstance(judged, str) else judged[0]


def door(it: Follower, book: "Book | None" = None) -> GroupAdmission:
    return GroupAdmission(it.group, book)


class Book:
    def __init__(self, key: bytes) -> None:
        self.key = key
        self.uses: list[bytes] = []

    def find(self, ident: bytes) -> bytes | None:
        return self.key if ident == invitation_ident(self.key) else None

    def used(self, ident: bytes) -> None:
        self.uses.append(ident)


def test_a_member_with_the_newest_secret_is_admitted() -> None:
    admitted = meet(door(node(3)), door(node()))
    assert admitted == Admitted(SWARM, mark_of(OLD))


def test_a_secret_alone_is_not_enough() -> None:
    """Fails without the check of the list."""
    assert meet(door(node(4)), door(node()), STRANGER) == "not-a-member"


def test_membership_alone_is_not_enough() -> None:
    assert meet(door(node(3, NEXT)), door(node())) == "not-admitted"


def test_another_group_is_another_swarm() -> None:
    other = door(node(3))
    other.swarm = b"o" * 16
    assert meet(other, door(node())) == "wrong-swarm"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([OLD], [OLD, NEW]),  # the peer was away
        ([OLD, NEW], [OLD]),  # this node was away
        ([OLD, NEW], [OLD, NEXT]),  # both rotated during a partition
    ],
)
def test_a_peer_with_another_newest_secret_proves_an_older_one(
    theirs: list[bytes], ours: list[bytes]
) -> None:
    assert isinstance(meet(door(node(3, *theirs)), door(node(90, *ours))), Admitted)


def test_the_dialler_checks_the_same_of_the_listener() -> None:
    dialler, listener = door(node(3, OLD, NEW)), door(node(90, OLD, NEXT))
    binding = Binding(b"e" * 32, FRIEND.peer, ME.peer)
    judged = admit(listener, hello(dialler, binding), binding)
    assert not isinstance(judged, str)
    _, secret = judged
    assert secret is not None
    answer = Hello((1, 1), b"i" * 16, GrantedLimits(1, 1, 1), listener.swarm,
                   token=secret.prove("listener", binding))  # fmt: skip
    assert confirm(dialler, answer, binding) == Admitted(SWARM, mark_of(OLD))
    stranger = Binding(b"e" * 32, FRIEND.peer, STRANGER.peer)
    forged = Hello((1, 1), b"i" * 16, GrantedLimits(1, 1, 1), listener.swarm,
                   token=secret.prove("listener", stranger))  # fmt: skip
    assert confirm(dialler, forged, stranger) == "not-a-member"


def test_a_token_is_invalid_on_another_connection() -> None:
    """Fails without the binding in the proof."""
    binding = Binding(b"e" * 32, FRIEND.peer, ME.peer)
    told = hello(door(node(3)), binding)
    other = Binding(b"f" * 32, FRIEND.peer, ME.peer)
    assert admit(door(node()), told, other) == "not-admitted"


def test_a_revoked_peer_is_told_so_with_any_proof() -> None:
    it, key = node(), b"k" * 32
    friend = it.founder  # type: ignore[attr-defined]
    at_once(it.take(friend.revoke(FRIEND, {})))
    at = door(it, Book(key))
    assert meet(door(node(3)), at) == "revoked"
    assert meet(Invited(key), at) == "revoked"
    assert FOUNDER.peer in at.words(FRIEND.peer, "revoked")
    assert at.words(FRIEND.peer, "full") == ""


def test_an_invitation_admits_a_stranger() -> None:
    book = Book(b"k" * 32)
    at = door(node(), book)
    admitted = meet(Invited(book.key), at, STRANGER)
    assert isinstance(admitted, Admitted) and admitted.kind == INVITATION
    secret = at.find(INVITATION, invitation_ident(book.key))
    assert secret is not None
    at.used(secret)
    assert book.uses == [invitation_ident(book.key)]
    assert meet(Invited(b"z" * 32), at, STRANGER) == "not-admitted"


def test_for_a_new_node_the_secret_is_enough() -> None:
    young = Follower(FakeNetwork(), 90, Person(1))
    young.group.secrets.add(1, OLD)
    assert meet(door(node(4)), door(young), STRANGER) == "not-ready"
    at_once(young.settle())
    assert isinstance(meet(door(node(4)), door(young), STRANGER), Admitted)


def test_the_proven_secrets_fit_into_a_hello() -> None:
    many = [number.to_bytes(32) for number in range(1, 65)]
    at = door(node(3, *many))
    assert len(at.further) < FURTHER
    binding = Binding(b"e" * 32, FRIEND.peer, ME.peer)
    assert len(hello(at, binding).encode()) < 1024


def test_without_the_list_a_secret_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupAdmission, "refusal", lambda self, peer, kind: None)
    assert isinstance(meet(door(node(4)), door(node()), STRANGER), Admitted)


def test_with_only_the_newest_secret_two_sides_of_a_partition_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GroupAdmission, "further", ())
    assert meet(door(node(3, OLD, NEW)), door(node(90, OLD, NEXT))) == "not-admitted"
