"""The hello and the rules of admission (docs/spec/lane.md, sections 3 and 8).

A hello is the first frame in each direction. Nothing else from a peer is parsed before its hello
has been accepted. Admission checks two kinds of secrets: the key of a swarm, and the key of an
invitation. A secret is proven by an HMAC over the TLS exporter. A proof is therefore worthless on
another connection, and for another pair of peers.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Final, Protocol

import msgpack

from .. import defaults
from ..decoding import decode
from ..errors import Undecodable
from ..identity import PeerId
from ..lane.events import GrantedLimits
from ..lane.frame import Fault

EXPORTER_LABEL: Final = b"EXPORTER-shoal-admission"
EXPORTER_BYTES: Final = 32
SWARM: Final = "swarm"
INVITATION: Final = "invitation"
FURTHER: Final = 8  # largest number of proofs of older secrets in one hello
_FEATURES = 32  # largest number of features in one hello
_WORD_BYTES = 32  # largest size of a name, in bytes
_WINDOW_LIMIT = 1 << 40  # largest window, in bytes


@dataclass(frozen=True, slots=True)
class HelloToken:
    """The proof of a secret in a hello: the kind of secret, its name, and the HMAC.

    The name `ident` is b"" for the swarm's key.
    """

    kind: str
    ident: bytes
    mac: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """One side's description of itself.

    `versions` are the lowest and the highest version of the protocol. `resume` is None for a new
    link. On a further path of a link, it is the incarnation of the other side.
    """

    versions: tuple[int, int]
    incarnation: bytes
    windows: GrantedLimits
    swarm: bytes = b""  # b"" when joining by an invitation, before the swarm is known
    features: tuple[str, ...] = ()
    resume: bytes | None = None
    port: int = 0  # the TCP port on which the sender listens; 0 for none
    udp_port: int = 0  # the UDP port on which the sender listens; 0 for none
    observed: tuple[str, int] | None = None  # IP address and port at which it sees the receiver
    token: HelloToken | None = None
    further: tuple[HelloToken, ...] = ()  # proofs of older secrets of the same kind

    def encode(self) -> bytes:
        """Encode the hello as the head of a HELLO frame, a msgpack map."""
        data: bytes = msgpack.packb(
            {
                "v": self.versions,
                "i": self.incarnation,
                "w": (self.windows.stream_bytes, self.windows.link_bytes, self.windows.streams),
                "s": self.swarm,
                "f": self.features,
                "r": self.resume,
                "p": self.port,
                "u": self.udp_port,
                "o": self.observed and (ip_address(self.observed[0]).packed, self.observed[1]),
                "t": self.token and _row(self.token),
            }
            | ({"k": [_row(token) for token in self.further]} if self.further else {})
        )
        return data

    @classmethod
    def decode(cls, data: bytes | memoryview) -> "Hello":
        """Decode the head of a HELLO frame. Unknown keys are ignored.

        Raises Fault (`bad-hello`) if it is malformed or exceeds HELLO_BYTES.
        """
        fields = _unpack(data)
        stream, link, streams = _numbers(fields, "w", 3, _WINDOW_LIMIT)
        low, high = _numbers(fields, "v", 2, 1 << 16)
        features = fields.get("f", [])
        if not isinstance(features, list) or len(features) > _FEATURES:
            raise Fault("bad-hello")
        ports = {"p": [fields.get("p", 0), fields.get("u", 0)]}
        port, udp_port = _numbers(ports, "p", 2, 65535)
        resume = fields.get("r")
        return cls(
            (low, high),
            _octets(fields.get("i"), defaults.INCARNATION_BYTES),
            GrantedLimits(stream, link, streams),
            _octets(fields.get("s"), 0, _WORD_BYTES),
            tuple(_word(feature) for feature in features),
            None if resume is None else _octets(resume, defaults.INCARNATION_BYTES),
            port,
            udp_port,
            _place(fields.get("o")),
            _token(fields.get("t")),
            _further(fields.get("k")),
        )


def common_version(ours: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """Return the highest version that is in both ranges, or None if they do not overlap."""
    version = min(ours[1], theirs[1])
    return version if version >= max(ours[0], theirs[0]) else None


def _unpack(data: bytes | memoryview) -> dict[str, object]:
    """Decode a msgpack map. Raises Fault if `data` is anything else."""
    try:
        fields = decode(data, limit=defaults.HELLO_BYTES)
    except Undecodable:
        raise Fault("bad-hello") from None
    if not isinstance(fields, dict):
        raise Fault("bad-hello")
    return fields


def _numbers(fields: Mapping[str, object], key: str, count: int, limit: int) -> list[int]:
    """Return the field `key`, a list of `count` integers from 0 to `limit`. Raises Fault if its
    value is anything else."""
    values = fields.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise Fault("bad-hello")
    if not all(type(value) is int and 0 <= value <= limit for value in values):
        raise Fault("bad-hello")
    return values


def _octets(value: object, least: int, most: int | None = None) -> bytes:
    """Return a value that must be bytes, `least` to `most` of them. Raises Fault if it is not.

    If `most` is None, exactly `least` bytes are expected.
    """
    if not isinstance(value, bytes) or not least <= len(value) <= (most or least):
        raise Fault("bad-hello")
    return value


def _word(value: object) -> str:
    """Return a value that must be a short printable ASCII text. Raises Fault if it is not."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise Fault("bad-hello")
    if len(value) > _WORD_BYTES:
        raise Fault("bad-hello")
    return value


def _place(value: object) -> tuple[str, int] | None:
    """Return (IP address, port). Return None if the value is malformed, because the address is only
    a hint."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    address, port = value
    if not isinstance(address, bytes) or type(port) is not int or not 0 < port < 1 << 16:
        return None
    try:
        return str(ip_address(address)), port
    except ValueError:
        return None


def _token(value: object) -> HelloToken | None:
    """Decode a token; None stays None. Raises Fault if it is malformed."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise Fault("bad-hello")
    return HelloToken(_word(value[0]), _octets(value[1], 0, _WORD_BYTES), _octets(value[2], 32))


def _row(token: HelloToken) -> tuple[str, bytes, bytes]:
    """Return a token as the tuple that is encoded: (kind, name, HMAC)."""
    return token.kind, token.ident, token.mac


def _further(value: object) -> tuple[HelloToken, ...]:
    """Decode the tokens of older secrets. Raises Fault if one is malformed."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > FURTHER:
        raise Fault("bad-hello")
    return tuple(token for token in map(_token, value) if token is not None)


# Admission.


@dataclass(frozen=True, slots=True)
class Binding:
    """Values that tie a proof to one connection: its TLS exporter, and the peer ids of both
    roles."""

    exporter: bytes
    dialler: PeerId
    listener: PeerId


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that two peers share, its kind, and the name by which it is looked up."""

    kind: str
    ident: bytes
    key: bytes

    def prove(self, role: str, binding: Binding) -> HelloToken:
        """Return the token with which one side proves the secret. `role` is `dialler` or
        `listener`.

        The token depends on the role, so that neither side can send the other's token back as its
        own.
        """
        parts = (
            b"shoal/admission/1",
            self.kind.encode(),
            role.encode(),
            binding.exporter,
            binding.dialler.encode(),
            binding.listener.encode(),
        )
        message = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        return HelloToken(self.kind, self.ident, hmac.digest(self.key, message, "sha256"))

    def proven_by(self, token: HelloToken | None, role: str, binding: Binding) -> bool:
        """Return whether a token proves that the side `role` knows the secret."""
        return token is not None and hmac.compare_digest(self.prove(role, binding).mac, token.mac)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The rule by which a peer was let in: `open`, `swarm`, `invitation` or `resumed`.

    `invitation` is the name of the invitation; b"" for the other rules.
    """

    kind: str
    invitation: bytes = b""


class Invitations(Protocol):
    """The invitations of a node. `ident` is the `invitation_ident` of an invitation's key."""

    def find(self, ident: bytes) -> bytes | None:
        """Return the key of an invitation, or None if it is unknown or no longer valid."""
        ...

    def used(self, ident: bytes) -> None:
        """Record that a peer has been let in by this invitation."""
        ...


class Admission(Protocol):
    """The rule that decides which peers are let in. A node may switch to another rule.

    The classes below check secrets only. The rule of a private group (`state/group/group.py`)
    checks members as well.
    """

    @property
    def swarm(self) -> bytes:
        """The public name of the swarm, up to 32 bytes; b"" if it is not known yet."""
        ...

    @property
    def secret(self) -> Secret | None:
        """The secret that this side proves when it dials; None if it proves none."""
        ...

    @property
    def further(self) -> Sequence[Secret]:
        """Older secrets that this side proves as well, at most FURTHER of them."""
        ...

    def find(self, kind: str, ident: bytes) -> Secret | None:
        """Return the secret that a dialler's token names, or None if it is unknown or no longer
        valid."""
        ...

    def refusal(self, peer: PeerId, kind: str) -> str | None:
        """Return the code that refuses a peer regardless of its proof, or None.

        `kind` is the kind of the proven secret. The dialler applies this rule to the listener as
        well.
        """
        ...

    def words(self, peer: PeerId, code: str) -> str:
        """Return the message that is sent to a refused peer together with the code."""
        ...

    def used(self, secret: Secret) -> None:
        """Record that a dialler was let in by this secret."""
        ...

    @property
    def open(self) -> bool:
        """Whether a dialler without a token is let in."""
        ...


def invitation_ident(key: bytes) -> bytes:
    """Return the 8 bytes that name an invitation in a hello without revealing its key."""
    return sha256(b"shoal/invitation/1\0" + key).digest()[:8]


def invited(invitations: Invitations | None, kind: str, ident: bytes) -> Secret | None:
    """Return the secret of the invitation `ident`. Return None if `kind` is another kind of secret,
    or if the invitation is unknown or no longer valid."""
    if kind != INVITATION or invitations is None:
        return None
    key = invitations.find(ident)
    return None if key is None else Secret(INVITATION, ident, key)


class _BySecret:
    """Base of rules that let in every peer that proves a secret, without further checks."""

    further: Sequence[Secret] = ()

    def refusal(self, peer: PeerId, kind: str) -> str | None:
        return None

    def words(self, peer: PeerId, code: str) -> str:
        return ""


class OpenSwarm(_BySecret):
    """Rule that lets in every peer that names the same swarm, or that proves an invitation."""

    open = True
    secret = None

    def __init__(self, name: bytes = b"open", invitations: Invitations | None = None) -> None:
        self.swarm = name
        self._invitations = invitations

    def find(self, kind: str, ident: bytes) -> Secret | None:
        return invited(self._invitations, kind, ident)

    def used(self, secret: Secret) -> None:
        if self._invitations is not None:
            self._invitations.used(secret.ident)


class Invited(_BySecret):
    """Rule of a node that joins a swarm by an invitation.

    The node proves the invitation's key (10 bytes or more) when it dials, and lets no peer in. If
    `swarm` is not b"", it joins only that swarm. An inviter in another swarm refuses it, and the
    invitation is not used up.
    """

    open = False

    def __init__(self, key: bytes, swarm: bytes = b"") -> None:
        if len(key) < 10:
            raise ValueError("an invitation's key needs at least 10 bytes")
        self.swarm = swarm
        self.secret = Secret(INVITATION, invitation_ident(key), key)

    def find(self, kind: str, ident: bytes) -> Secret | None:
        return None

    def used(self, secret: Secret) -> None:
        """Do nothing, because no peer is let in."""


def admit(
    admission: Admission, hello: Hello, binding: Binding
) -> tuple[Admitted, Secret | None] | str:
    """Check a dialler's hello, as the listener.

    Return (the rule by which the peer is let in, the secret that it has proven or None), or the
    code that refuses it.
    """
    if hello.swarm and admission.swarm and hello.swarm != admission.swarm:
        return "wrong-swarm"
    token = hello.token
    if token is None:
        return (Admitted("open"), None) if admission.open and hello.swarm else "not-admitted"
    for shown in (token, *hello.further):
        secret = admission.find(shown.kind, shown.ident)
        if secret is not None and secret.proven_by(shown, "dialler", binding):
            refused = admission.refusal(binding.dialler, secret.kind)
            return refused or (Admitted(secret.kind, secret.ident), secret)
    return "not-admitted"


def confirm(admission: Admission, hello: Hello, binding: Binding) -> Admitted | str:
    """Check the listener's hello, as the dialler.

    The listener must prove a secret that the dialler has proven. Return the rule by which both are
    connected, or the code that refuses the listener.
    """
    if admission.swarm and hello.swarm != admission.swarm:
        return "wrong-swarm"
    secret = admission.secret
    if secret is None:
        return Admitted("open")
    for known in (secret, *admission.further):
        named = hello.token is not None and hello.token.ident == known.ident
        if named and known.proven_by(hello.token, "listener", binding):
            refused = admission.refusal(binding.listener, known.kind)
            return refused or Admitted(known.kind, known.ident)
    return "not-admitted"
