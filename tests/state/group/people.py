"""Authors of `group` feeds, and replicas that follow them without links."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgpack

from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import FORKED, Entry, Head
from shoal.state.feeds.kinds import all_parts
from shoal.state.group.facts import (
    ABOUT,
    GROUP,
    Charter,
    GroupFacts,
    Role,
    about_fact,
    grant_fact,
    grant_key,
    revocation_fact,
    revocation_key,
)
from shoal.state.group.group import Group, Secrets
from shoal.state.group.sealing import box_of
from shoal.state.group.upkeep import Upkeep
from shoal.transport.identity import PeerId
from tests.state.fake_feeds import FakeNetwork, FakeNode, Writer

NONCE = b"n" * 16
OWNER, OPERATOR, CLIENT = Role.OWNER, Role.OPERATOR, Role.CLIENT


class Person(Writer):
    """Writer of a `group` feed with any facts, allowed or not."""

    @property
    def box(self) -> bytes:
        return box_of(self.identity)

    def found(self) -> Entry:
        return self.tell({ABOUT: about_fact("", NONCE, self.box)})

    def grant(self, other: "Person", role: Role) -> Entry:
        return self.tell({grant_key(other.peer): grant_fact(role, other.box, 1)})

    def revoke(self, other: "Person", ends: Mapping[Plot, Head]) -> Entry:
        return self.tell({revocation_key(other.peer): revocation_fact(ends, 2)})

    def tell(self, facts: Mapping[str, Mapping[str, Any]]) -> Entry:
        return self.write(GROUP, **facts)


def charter_of(founder: Person) -> Charter:
    return Charter(founder.peer, NONCE)


class Follower(FakeNode):
    """A node that keeps all feeds and applies the rule to them."""

    def __init__(self, net: FakeNetwork, number: int, founder: Person) -> None:
        super().__init__(net, number)
        self.group = Group(charter_of(founder), self.writer.identity, Secrets())
        parts = SimpleNamespace(replica=self.replica, exchange=self.exchange)
        none = cast(Any, None)
        self.upkeep = Upkeep(none, none, self.writer.identity, self.group, cast(Any, parts), none)
        self.replica.watchers.append(self.upkeep)

    async def take(self, *entries: Entry) -> None:
        """Take in entries as from a peer, then apply their consequences."""
        await self.replica.take([(entry.sealed,) for entry in entries])
        await self.settle()

    async def settle(self) -> None:
        await self.replica.grouped((self.group.charter.founder,))
        await self.upkeep.settle()

    def heads(self, of: Writer) -> dict[Plot, Head]:
        """Return the ends that it would name if it revoked that author now."""
        found = ((plot, self.replica.head(of.key, plot)) for plot in all_parts())
        return {plot: head for plot, head in found if head is not None and head != FORKED}


def said(facts: Mapping[str, Mapping[str, Any]]) -> GroupFacts:
    """Return the content of a feed with these facts."""
    found = GroupFacts()
    for key, value in facts.items():
        found.change(key, msgpack.packb(value))
    return found


def in_order(people: list[Person]) -> list[Person]:
    return sorted(people, key=lambda person: person.key)


def peers(*people: Person) -> list[PeerId]:
    return [person.peer for person in people]
