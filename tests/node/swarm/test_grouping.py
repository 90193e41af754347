"""A node's role in a group: which peers join, and what it reports to its owner."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.health import Health
from shoal.node.swarm.credentials import Credentials
from shoal.node.swarm.grouping import JOIN, Grouping
from shoal.state.errors import GroupRefused
from shoal.state.group.facts import Role
from shoal.state.membership.membership import Membership
from shoal.state.service import State
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import INVITATION, SWARM, Admitted
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.link.link import Link

OWN, PEER, OWNER = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3))
BOX = b"b" * 32


class FakeEndpoint:
    """Records the callbacks."""

    def __init__(self) -> None:
        self.peer = OWN
        self.admitted: Admitted | None = None
        self.round_trip: float | None = None  # of the link in seconds
        self.told: dict[str, Any] = {}

    def handle(self, method: str, handler: Any) -> None:
        self.told[method] = handler

    def on_refused(self, callback: Any) -> None:
        self.told["refused"] = callback

    def on_link(self, callback: Any) -> None:
        self.told["link"] = callback

    def on_link_lost(self, callback: Any) -> None:
        self.told["lost"] = callback

    def link(self, peer: PeerId) -> Any:
        if self.admitted is None:
            return None
        return link(peer, self.admitted, round_trip=self.round_trip)


class FakeUpkeep:
    def __init__(self) -> None:
        self.roles: dict[PeerId, Role] = {}
        self.group = SimpleNamespace(
            revoked_by=lambda peer: self.revoked.get(peer),
            order=SimpleNamespace(role=lambda peer: self.roles.get(peer)),
        )
        self.revoked: dict[PeerId, PeerId] = {}
        self.admitted: list[tuple[PeerId, Role, bytes]] = []
        self.refuses = False
        self.management = SimpleNamespace(admit=self.admit)

    async def admit(self, peer: PeerId, role: Role, box: bytes) -> None:
        if self.refuses:
            raise GroupRefused("not-owner", "clients cannot let clients in")
        self.admitted.append((peer, role, box))
        self.roles[peer] = role


class Book:
    def role(self, ident: bytes) -> Role | None:
        return Role.CLIENT if ident == b"code" else None


def link(
    peer: PeerId, admitted: Admitted, *, dialled: bool = True, round_trip: float | None = None
) -> Link:
    status = SimpleNamespace(admitted=admitted, dialled=dialled)
    return cast(Link, SimpleNamespace(peer=peer, status=status, round_trip=round_trip))


class Node:
    def __init__(self, *, private: bool = True) -> None:
        self.endpoint, self.upkeep, self.health = FakeEndpoint(), FakeUpkeep(), Health()
        self.saved = 0
        handed = SimpleNamespace(as_payload=lambda: b"handed") if private else None
        credentials = SimpleNamespace(handed=handed, book=Book(), save=self.save)
        state = SimpleNamespace(upkeep=self.upkeep if private else None)
        self.grouping = Grouping(
            cast(State, state),
            cast(Credentials, credentials),
            cast(Endpoint, self.endpoint),
            cast(Membership, None),
            self.health,
        )

    async def save(self) -> None:
        self.saved += 1

    async def join(self, payload: bytes = BOX) -> Reply | Refusal:
        answer = await self.endpoint.told[JOIN](Call(PEER, {}, payload))
        assert isinstance(answer, Reply | Refusal)
        return answer

    @property
    def sentences(self) -> list[str]:
        return [condition.sentence for condition in self.health.conditions()]


@pytest.mark.trio
async def test_invited_peer_gets_the_role_of_its_code() -> None:
    node = Node()
    node.endpoint.admitted = Admitted(INVITATION, b"code")
    answer = await node.join()
    assert isinstance(answer, Reply)
    assert (answer.header, bytes(answer.payload)) == ({"private": True}, b"handed")
    assert node.upkeep.admitted == [(PEER, Role.CLIENT, BOX)]
    assert node.saved == 1


@pytest.mark.trio
@pytest.mark.parametrize("private", [True, False])
async def test_repeated_join_does_not_write_the_disk_again(private: bool) -> None:
    node = Node(private=private)
    node.endpoint.admitted = Admitted(INVITATION, b"code")
    for _ in range(20):
        assert isinstance(await node.join(), Reply)
    assert node.saved == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("admitted", "payload"),
    [
        (None, BOX),
        (Admitted(SWARM, b"mark"), BOX),
        (Admitted(INVITATION, b"another"), BOX),
        (Admitted(INVITATION, b"code"), BOX[1:]),
    ],
)
async def test_uninvited_peer_cannot_join(admitted: Admitted | None, payload: bytes) -> None:
    node = Node()
    node.endpoint.admitted = admitted
    answer = await node.join(payload)
    assert isinstance(answer, Refusal) and answer.code == "not-invited"
    assert node.upkeep.admitted == []


@pytest.mark.trio
async def test_code_raises_a_role_only_once() -> None:
    """Fails if each call counts: a peer whose role was lowered could raise it on its first link."""
    node = Node()
    node.endpoint.admitted = Admitted(INVITATION, b"code")
    node.upkeep.refuses = True
    assert isinstance(await node.join(), Refusal)
    node.upkeep.refuses = False
    for _ in range(3):
        assert isinstance(await node.join(), Reply)
    assert len(node.upkeep.admitted) == 1, "a repeated call gets the reply again, and no more"
    del node.upkeep.roles[PEER]
    assert isinstance(await node.join(), Reply)
    assert len(node.upkeep.admitted) == 2, "a former member that was not revoked joins again"


@pytest.mark.trio
async def test_inviter_without_permission_gives_the_reason() -> None:
    node = Node()
    node.endpoint.admitted = Admitted(INVITATION, b"code")
    node.upkeep.refuses = True
    answer = await node.join()
    assert isinstance(answer, Refusal) and answer.code == "not-owner"


@pytest.mark.trio
async def test_open_swarm_replies_that_it_is_open() -> None:
    node = Node(private=False)
    node.endpoint.admitted = Admitted(INVITATION, b"code")
    answer = await node.join(b"")
    assert isinstance(answer, Reply) and answer.header == {"private": False}


def test_revocation_names_the_peer_that_reported_it() -> None:
    node = Node()
    node.endpoint.told["refused"](PEER, "full", "")
    assert node.sentences == []
    node.endpoint.told["refused"](PEER, "revoked", f"revoked by {OWNER}")
    (sentence,) = node.sentences
    assert sentence == f"the group has revoked this node: by {OWNER}, according to {PEER}"
    node.endpoint.told["refused"](PEER, "revoked", f"revoked by {PEER}")
    assert node.sentences == [f"the group has revoked this node: by {PEER}"]
    node.endpoint.told["refused"](PEER, "revoked", "revoked")
    assert node.sentences == [f"the group has revoked this node: according to {PEER}"]
    (condition,) = node.health.conditions()
    assert f"`shoal group role {OWN} ROLE`" in (condition.hint or "")


def test_open_swarm_ignores_claims_of_revocation() -> None:
    """Fails if no group is required: nothing would clear a stranger's false claim."""
    node = Node(private=False)
    node.endpoint.told["refused"](PEER, "revoked", f"revoked by {OWNER}")
    node.endpoint.told["lost"](link(PEER, Admitted("open")), "revoked")
    assert node.sentences == []


def test_false_revocation_is_cleared_when_a_member_admits_this_node() -> None:
    node = Node()
    node.endpoint.told["lost"](link(PEER, Admitted(SWARM)), "revoked")
    assert len(node.sentences) == 1
    node.endpoint.told["link"](link(OWNER, Admitted(INVITATION, b"code")))
    node.endpoint.told["link"](link(OWNER, Admitted(SWARM, b"mark"), dialled=False))
    assert len(node.sentences) == 1, "a dialling peer has not checked its member list yet"
    node.endpoint.told["link"](link(OWNER, Admitted(SWARM, b"mark")))
    assert node.sentences == []


def test_revocation_is_cleared_by_a_link_to_its_reporter() -> None:
    node = Node()
    node.endpoint.told["refused"](PEER, "revoked", f"revoked by {OWNER}")
    assert len(node.sentences) == 1
    node.endpoint.admitted = Admitted(SWARM, b"mark")  # the peer has dialled this node
    node.grouping.report()
    assert len(node.sentences) == 1, "the peer may yet refuse this node"
    node.endpoint.round_trip = 0.01
    node.grouping.report()
    assert node.sentences == []


def test_own_member_list_is_enough_for_a_revocation() -> None:
    node = Node()
    node.upkeep.revoked[OWN] = OWNER
    node.endpoint.told["refused"](PEER, "revoked", "")
    assert node.sentences == [f"the group has revoked this node: by {OWNER}"]


def test_claims_of_revoked_peers_are_ignored() -> None:
    node = Node()
    node.upkeep.revoked[PEER] = OWN
    node.endpoint.told["lost"](link(PEER, Admitted(SWARM)), "revoked")
    node.endpoint.told["refused"](PEER, "revoked", "")
    assert node.sentences == []
