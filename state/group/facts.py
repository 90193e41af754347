"""Types of the facts in members' `group` feeds, with functions that parse, check and write them.

This module does not decide which facts are valid; `rule.py` does. Spec: docs/spec/group.md, Facts.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

from msgspec import Meta
from msgspec import field as wire_field

from ...transport.decoding import typed
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import PeerId, parse_peer_id, public_key_of
from ...transport.message import Digest, Message, check_text
from .. import defaults
from ..errors import BadFact
from ..feeds.digest import Plot
from ..feeds.entry import MAX_EPOCH, Head
from ..feeds.kinds import KINDS
from ..views.fields import Fields, read_fields, read_whole

At = TypeVar("At")
Fact = TypeVar("Fact")
GROUP: Final[Plot] = ("group", 0)
ABOUT: Final = "about"
KEY: Final = "key/"
"""Prefix of the keys of facts about secrets."""
_MEMBER, _REVOKED = "member/", "revoked/"
_DOMAIN: Final = b"shoal/group/1\0"
BOX_BYTES: Final = 32  # an X25519 public key
MARK_BYTES: Final = 8


class Role(IntEnum):
    """The permissions of a member. A higher role includes the lower ones."""

    CLIENT = 1  # may send requests and jobs
    OPERATOR = 2  # may also serve, and admit clients
    OWNER = 3  # may also admit members in any role, revoke members and rotate the key

    @property
    def word(self) -> str:
        """The role's name in facts and messages."""
        return self.name.lower()


ROLES: Final = {role.word: role for role in Role}


@dataclass(frozen=True, slots=True)
class Charter:
    """The permanent identity of a group: its founder and a random number."""

    founder: PeerId
    nonce: bytes

    @property
    def ident(self) -> bytes:
        """The group's public id, 16 bytes.

        The id stays the same when secrets and members change.
        """
        told = _DOMAIN + public_key_of(self.founder) + self.nonce
        return hashlib.sha256(told).digest()[: defaults.GROUP_IDENT_BYTES]


_Box = Annotated[bytes, Meta(min_length=BOX_BYTES, max_length=BOX_BYTES)]
_Nonce = Annotated[
    bytes, Meta(min_length=defaults.GROUP_NONCE_BYTES, max_length=defaults.GROUP_NONCE_BYTES)
]


class About(Message, frozen=True):
    """The fact in which the founder publishes the group's name, its nonce, and the founder's
    box."""

    nonce: _Nonce
    box: _Box
    name: str = ""

    def check(self) -> None:
        check_text(self.name, defaults.NAME_BYTES)


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of a role to a peer.

    `box` is the peer's X25519 key, for which secrets are sealed.
    """

    role: Role
    box: bytes
    since: int  # the granter's wall clock in ms; for display only


@dataclass(frozen=True, slots=True)
class Revocation:
    """The revocation of a peer.

    `ends` has the last entry that still counts in each of the peer's feeds. `since` is the
    revoker's wall clock in ms, for display only.
    """

    ends: Mapping[Plot, Head]
    since: int


class Sealed(Message, frozen=True):
    """A part of a rotation: the new secret, sealed for some members with one ephemeral key."""

    mark: Annotated[bytes, Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]  # of the secret
    ephemeral: _Box = wire_field(name="from")
    boxes: Annotated[bytes, Meta(max_length=defaults.FACT_BYTES)]
    """Tag and ciphertext for each member, concatenated."""


class _Grant(Message, frozen=True):
    role: Literal["client", "operator", "owner"]
    box: _Box
    since: int = 0


class _End(NamedTuple):
    kind: str
    part: int
    epoch: Annotated[int, Meta(ge=1, le=MAX_EPOCH)]
    seq: Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
    hash: Digest


_ENDS: Final = 2 * sum(len(kind.parts) for kind in KINDS.values())


class _Revocation(Message, frozen=True):
    heads: Annotated[tuple[_End, ...], Meta(max_length=_ENDS)]
    since: int = 0


@dataclass(slots=True)
class GroupFacts:
    """All facts of one `group` feed, parsed."""

    abouts: dict[str, About] = field(default_factory=dict)
    """At most one fact, under the key ABOUT."""
    grants: dict[PeerId, Grant] = field(default_factory=dict)
    revoked: dict[PeerId, Revocation] = field(default_factory=dict)
    keys: dict[tuple[int, int], Sealed] = field(default_factory=dict)
    """Parts of secrets by (number of the rotation, number of the part)."""
    bad: int = field(default=0, compare=False)  # malformed facts that were skipped

    @property
    def about(self) -> About | None:
        """The founder's description of the group, or None if the feed has none."""
        return self.abouts.get(ABOUT)

    def change(self, key: str, value: bytes | None) -> None:
        """Set a fact, or remove it if `value` is None. A malformed fact counts as missing."""
        try:
            self._change(key, value)
        except (BadFact, Undecodable):
            self.bad += value is not None

    def _change(self, key: str, value: bytes | None) -> None:
        if key == ABOUT:
            _set(self.abouts, key, value, partial(typed, About))
        elif key.startswith(KEY):
            _set(self.keys, _numbers(key), value, partial(typed, Sealed))
        elif key.startswith(_MEMBER):
            _set(self.grants, _peer(key.removeprefix(_MEMBER)), value, _grant)
        elif key.startswith(_REVOKED):
            _set(self.revoked, _peer(key.removeprefix(_REVOKED)), value, _revocation)
        else:
            raise BadFact("this version does not know a fact of a group")


def _set(into: dict[At, Fact], at: At, value: bytes | None, read: Callable[[Fields], Fact]) -> None:
    into.pop(at, None)
    if value is not None:
        into[at] = read(read_fields(value))


def about_fact(name: str, nonce: bytes, box: bytes) -> dict[str, object]:
    """Return the value of the founder's fact `about`."""
    return {"name": name, "nonce": nonce, "box": box}


def grant_key(peer: PeerId) -> str:
    """Return the key of the fact that grants a peer a role."""
    return _MEMBER + peer


def grant_fact(role: Role, box: bytes, since: int) -> dict[str, object]:
    """Return the value of a fact that grants a role."""
    return {"role": role.word, "box": box, "since": since}


def revocation_key(peer: PeerId) -> str:
    """Return the key of the fact that revokes a peer."""
    return _REVOKED + peer


def revocation_fact(ends: Mapping[Plot, Head], since: int) -> dict[str, object]:
    """Return the value of a fact that revokes a peer.

    `ends` are the last entries of its feeds that still count, by plot. `since` is the time of the
    revocation, in milliseconds since 1970.
    """
    return {"heads": [[*plot, *head] for plot, head in sorted(ends.items())], "since": since}


def key_key(number: int, part: int) -> str:
    """Return the key of the fact that contains part `part` of rotation `number`."""
    return f"{KEY}{number}/{part}"


def key_fact(sealed: Sealed) -> dict[str, object]:
    """Return one sealed part of a key rotation as the value of a fact."""
    return sealed.fields()


def _grant(fields: Fields) -> Grant:
    said = typed(_Grant, fields)
    return Grant(ROLES[said.role], said.box, read_whole(said.since, defaults.MAX_COUNT))


def _revocation(fields: Fields) -> Revocation:
    """Parse a revocation. Feeds of kinds that this version does not know are left out."""
    said = typed(_Revocation, fields)
    known = [end for end in said.heads if end.kind in KINDS and end.part in KINDS[end.kind].parts]
    ends = {(end.kind, end.part): Head(end.epoch, end.seq, end.hash) for end in known}
    return Revocation(ends, read_whole(said.since, defaults.MAX_COUNT))


def _peer(text: str) -> PeerId:
    try:
        return parse_peer_id(text)
    except TransportError:
        raise BadFact("the key of a fact has no peer id") from None


def _numbers(key: str) -> tuple[int, int]:
    """Return (number of the rotation, number of its part) from a fact's key.

    Raises BadFact if the key is malformed, out of bounds or not in its canonical form.
    """
    words = key.removeprefix(KEY).split("/")
    if len(words) == 2 and all(word.isascii() and word.isdigit() for word in words):
        number, part = (int(word) if len(word) <= 10 else -1 for word in words)
        bounded = 0 < number <= defaults.KEY_NUMBER and 0 <= part < defaults.KEY_PARTS
        if bounded and key == key_key(number, part):
            return number, part
    raise BadFact("the key of a fact about a secret is not canonical")
