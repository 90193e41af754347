"""Group credentials: the identity of a private group, and the secrets of a member.

They are encoded as a file of the data folder, and as the payload for a joining node. Specified in
docs/spec/group.md, section "Joining".
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from ...state.defaults import GROUP_NONCE_BYTES, KEY_NUMBER, KEYS_KEPT
from ...state.group.facts import Charter
from ...state.group.sealing import SECRET_BYTES
from ...transport.decoding import decode
from ...transport.errors import TransportError, Undecodable
from ...transport.identity import PeerId, parse_peer_id
from ...transport.lane.frame import Bytes

VERSION = 1
HANDED_BYTES = 8 << 10  # limit of the payload for a joining node


@dataclass(frozen=True, slots=True)
class Handed:
    """Credentials of a group: its founder, its nonce, and its numbered secrets, the newest
    first."""

    founder: PeerId
    nonce: bytes
    keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    alone: bool = False  # no invitation to the group has been made yet

    @classmethod
    def founded(cls, founder: PeerId, entropy: Callable[[int], bytes]) -> "Handed":
        """Return the credentials of a new group with one secret."""
        return cls(founder, entropy(GROUP_NONCE_BYTES), ((1, entropy(SECRET_BYTES)),), alone=True)

    @property
    def charter(self) -> Charter:
        """The charter (founder and nonce) that identifies the group."""
        return Charter(self.founder, self.nonce)

    def as_file(self) -> bytes:
        """Return the credentials as JSON, for the data folder."""
        keys = [[number, secret.hex()] for number, secret in self.keys]
        told = {"version": VERSION, "founder": self.founder, "nonce": self.nonce.hex()}
        return json.dumps(told | {"keys": keys, "alone": self.alone}).encode()

    def as_payload(self) -> bytes:
        """Return the credentials as msgpack, for a joining node."""
        packed: bytes = msgpack.packb([self.founder, self.nonce, self.keys])
        return packed


def read_handed(data: bytes) -> Handed | None:
    """Decode the JSON file that `Handed.as_file` returns. Returns None if the data is invalid."""
    try:
        told: Any = json.loads(data)
        keys = [[number, bytes.fromhex(secret)] for number, secret in told["keys"]]
        handed = _checked(told["founder"], bytes.fromhex(told["nonce"]), keys)
        return replace(handed, alone=told.get("alone") is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def open_handed(payload: Bytes) -> Handed | None:
    """Decode the payload that `Handed.as_payload` returns, received from an untrusted peer. Returns
    None if it is invalid."""
    try:
        founder, nonce, keys = decode(payload, limit=HANDED_BYTES)
        return _checked(founder, nonce, keys)
    except (Undecodable, ValueError, TypeError):
        return None


def _checked(founder: object, nonce: object, keys: object) -> Handed:
    """Return the credentials after checking all types and sizes. Raises ValueError if one is
    wrong."""
    if not isinstance(founder, str) or not isinstance(nonce, bytes) or not isinstance(keys, list):
        raise ValueError
    if len(nonce) != GROUP_NONCE_BYTES or not 0 < len(keys) <= KEYS_KEPT:
        raise ValueError
    try:
        return Handed(parse_peer_id(founder), nonce, tuple(_key(each) for each in keys))
    except TransportError:
        raise ValueError from None


def _key(value: object) -> tuple[int, bytes]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    number, secret = value
    if type(number) is not int or not 0 < number <= KEY_NUMBER:
        raise ValueError
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise ValueError
    return number, secret
