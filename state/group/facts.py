"""Reader and writer of the facts in members' `group` feeds, with types and bounds checked.

This module does not decide which facts are valid; `rule.py` does. Spec: docs/spec/group.md, Facts.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from ...transport.errors import TransportError
from ...transport.identity import KEY_BYTES, PeerId, parse_peer_id, public_key_of
from .. import defaults
from ..errors import BadFact
from ..feeds.digest import Plot
from ..feeds.entry import HASH_BYTES, MAX_EPOCH, Head
from ..feeds.kinds import KINDS
from ..views.fact import Fields, read_bytes, read_each, read_fields, read_text, read_whole

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
        """Return the role's name in facts and messages."""
        return self.name.lower()


ROLES: Final = {role.word: role for role in Role}


@dataclass(frozen=True, slots=True)
class Charter:
    """The permanent identity of a group: its founder and a random number."""

    founder: PeerId
    nonce: bytes

    @property
    def ident(self) -> bytes:
        """Return the group's public id, 16 bytes. It stays the same when keys and members
        change."""
        told = _DOMAIN + public_key_of(self.founder) + self.nonce
        return hashlib.sha256(told).digest()[: defaults.GROUP_IDENT_BYTES]


@dataclass(frozen=True, slots=True)
class About:
    """The founder's fact with the group's name, its nonce, and the founder's box."""

    name: str
    nonce: bytes
    box: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of a role to a peer. `box` is its X25519 key, to which secrets are sealed."""

    role: Role
    box: bytes
    since: int  # the granter's wall clock in ms; for display only


@dataclass(frozen=True, slots=True)
class Revocation:
    """The revocation of a peer. `ends` has the last entry of each of its feeds that still
    counts."""

    ends: Mapping[Plot, Head]
    since: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A part of a rotation: the new secret, sealed for a number of members with one ephemeral
    key."""

    mark: bytes  # of the secret
    ephemeral: bytes
    boxes: bytes  # tag and ciphertext for each member, concatenated


@dataclass(slots=True)
class Said:
    """All facts of one `group` feed."""

    abouts: dict[str, About] = field(default_factory=dict)
    """At most one, under the key ABOUT."""
    grants: dict[PeerId, Grant] = field(default_factory=dict)
    revoked: dict[PeerId, Revocation] = field(default_factory=dict)
    keys: dict[tuple[int, int], Sealed] = field(default_factory=dict)
    """By number of the rotation and of the part."""
    bad: int = field(default=0, compare=False)  # malformed facts that were skipped

    @property
    def about(self) -> About | None:
        """Return the founder's description of the group, or None."""
        return self.abouts.get(ABOUT)

    def change(self, key: str, value: bytes | None) -> None:
        """Set a fact, or remove it (None). A malformed fact counts as missing."""
        if (place := self._place(key)) is None:
            self.bad += value is not None
            return
        into, at, read = place
        into.pop(at, None)
        try:
            if value is not None:
                into[at] = read(read_fields(value))
        except BadFact:
            self.bad += 1

    def _place(self, key: str) -> "_Place | None":
        """Return the table, key and reader for a fact, or None if its kind is unknown."""
        if key == ABOUT:
            return self.abouts, key, _about
        if key.startswith(KEY):
            numbers = _numbers(key)
            return None if numbers is None else (self.keys, numbers, _sealed)
        for prefix, into, read in (
            (_MEMBER, self.grants, _grant),
            (_REVOKED, self.revoked, _revocation),
        ):
            if key.startswith(prefix):
                peer = _peer(key.removeprefix(prefix))
                return None if peer is None else (into, peer, read)
        return None


_Place = tuple[dict[Any, Any], Any, Callable[[Fields], Any]]


def about_fact(name: str, nonce: bytes, box: bytes) -> dict[str, Any]:
    """Return the value of the founder's fact `about`."""
    return {"name": name, "nonce": nonce, "box": box}


def grant_key(peer: PeerId) -> str:
    """Return the key of the fact that grants a peer a role."""
    return _MEMBER + peer


def grant_fact(role: Role, box: bytes, since: int) -> dict[str, Any]:
    """Return the value of a fact that grants a role."""
    return {"role": role.word, "box": box, "since": since}


def revocation_key(peer: PeerId) -> str:
    """Return the key of the fact that revokes a peer."""
    return _REVOKED + peer


def revocation_fact(ends: Mapping[Plot, Head], since: int) -> dict[str, Any]:
    """Return the value of a fact that revokes a peer."""
    return {"heads": [[*plot, *head] for plot, head in sorted(ends.items())], "since": since}


def key_key(number: int, part: int) -> str:
    """Return the key of the fact with a part of a rotation."""
    return f"{KEY}{number}/{part}"


def key_fact(sealed: Sealed) -> dict[str, Any]:
    """Return the value of a fact with a part of a rotation."""
    return {"mark": sealed.mark, "from": sealed.ephemeral, "boxes": sealed.boxes}


def _about(fields: Fields) -> About:
    name = read_text(fields.get("name", ""), defaults.NAME_BYTES)
    nonce = _exact(fields.get("nonce"), defaults.GROUP_NONCE_BYTES)
    return About(name, nonce, _exact(fields.get("box"), BOX_BYTES))


def _grant(fields: Fields) -> Grant:
    role = fields.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadFact("a grant has a role that this version does not know")
    return Grant(ROLES[role], _exact(fields.get("box"), BOX_BYTES), _since(fields))


def _revocation(fields: Fields) -> Revocation:
    most = sum(len(kind.parts) for kind in KINDS.values())
    heads = read_each(fields.get("heads"), 2 * most, _end)
    return Revocation(dict(filter(None, heads)), _since(fields))


def _end(value: object) -> tuple[Plot, Head] | None:
    """Return a feed's plot and its end, or None if this version does not know the kind."""
    if type(value) is not list or len(value) != 5:
        raise BadFact("expected a head in a revocation to be a list of 5 items")
    kind, part, epoch, seq, digest = value
    if type(kind) is not str or type(part) is not int:
        raise BadFact("a head in a revocation lacks the kind or part of its feed")
    if kind not in KINDS or part not in KINDS[kind].parts:
        return None
    head = Head(
        _bounded(epoch, 1, MAX_EPOCH), _bounded(seq, 0, MAX_EPOCH), _exact(digest, HASH_BYTES)
    )
    return (kind, part), head


def _sealed(fields: Fields) -> Sealed:
    boxes = read_bytes(fields.get("boxes"), defaults.FACT_BYTES)
    mark = _exact(fields.get("mark"), MARK_BYTES)
    return Sealed(mark, _exact(fields.get("from"), BOX_BYTES), boxes)


def _since(fields: Fields) -> int:
    return read_whole(fields.get("since", 0), defaults.MAX_COUNT)


def _exact(value: object, size: int) -> bytes:
    data = read_bytes(value, size)
    if len(data) != size:
        raise BadFact(f"expected {size} bytes in a fact, got {len(data)}")
    return data


def _bounded(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadFact(f"a number of a head is not in {least}..{most}")
    return value


def _peer(text: str) -> PeerId | None:
    try:
        return parse_peer_id(text)
    except TransportError:
        return None


def _numbers(key: str) -> tuple[int, int] | None:
    """Return the numbers of a rotation and its part, or None if the key is not canonical."""
    words = key.removeprefix(KEY).split("/")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return None
    number, part = (int(word) if len(word) <= 10 else -1 for word in words)
    if not 0 < number <= defaults.KEY_NUMBER or not 0 <= part < defaults.KEY_PARTS:
        return None
    return (number, part) if key == key_key(number, part) else None


assert KEY_BYTES == BOX_BYTES
