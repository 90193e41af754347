"""What a member has in its hands of a private group: which group, and the secrets that it knows.

As a file of its data folder, and as what a joiner is handed. Spec: docs/spec/group.md, Joining.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from ..state.defaults import GROUP_NONCE_BYTES, KEY_NUMBER, KEYS_KEPT
from ..state.group.facts import Charter
from ..state.group.sealing import SECRET_BYTES
from ..transport.decoding import decode
from ..transport.errors import TransportError, Undecodable
from ..transport.frame import Bytes
from ..transport.identity import PeerId, parse_peer_id

VERSION = 1
HANDED_BYTES = 8 << 10  # as a joiner gets it


@dataclass(frozen=True, slots=True)
class Handed:
    """The founder and the nonce of a group, the secrets by their numbers, newest first."""

    founder: PeerId
    nonce: bytes
    keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    alone: bool = False  # as its founder has it who has invited nobody yet

    @classmethod
    def founded(cls, founder: PeerId, entropy: Callable[[int], bytes]) -> "Handed":
        """A new group."""
        return cls(founder, entropy(GROUP_NONCE_BYTES), ((1, entropy(SECRET_BYTES)),), alone=True)

    @property
    def charter(self) -> Charter:
        """Which group."""
        return Charter(self.founder, self.nonce)

    def as_file(self) -> bytes:
        """JSON."""
        keys = [[number, secret.hex()] for number, secret in self.keys]
        told = {"version": VERSION, "founder": self.founder, "nonce": self.nonce.hex()}
        return json.dumps(told | {"keys": keys, "alone": self.alone}).encode()

    def as_payload(self) -> bytes:
        """msgpack."""
        packed: bytes = msgpack.packb([self.founder, self.nonce, self.keys])
        return packed


def read_handed(data: bytes) -> Handed | None:
    """What `as_file` made; None: it is nothing of the kind."""
    try:
        told: Any = json.loads(data)
        keys = [[number, bytes.fromhex(secret)] for number, secret in told["keys"]]
        handed = _checked(told["founder"], bytes.fromhex(told["nonce"]), keys)
        return replace(handed, alone=told.get("alone") is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def open_handed(payload: Bytes) -> Handed | None:
    """What `as_payload` made, from a stranger; None: it is nothing of the kind."""
    try:
        founder, nonce, keys = decode(payload, limit=HANDED_BYTES)
        return _checked(founder, nonce, keys)
    except (Undecodable, ValueError, TypeError):
        return None


def _checked(founder: object, nonce: object, keys: object) -> Handed:
    """Raises ValueError."""
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
