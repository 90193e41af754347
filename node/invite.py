"""Invitations: short codes that hold a node's address and fingerprint and admit a peer.

A code is Crockford's base32 (https://www.crockford.com/base32.html) of

    version (4 bits) · address kind (4 bits: 4 or 6) · IP address (4 or 16 bytes) · port (2) ·
    fingerprint (10: SHA-256 of the public key, cut) · secret (10) · check (2)

in groups of five. The joiner checks with the fingerprint that the peer it reached is the inviter.
The secret admits it to a private swarm (docs/spec/control.md).
"""

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..state.group.facts import ROLES, Role
from ..transport.handshake.hello import invitation_ident
from . import defaults
from .errors import BadInvite, NodeError

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LOOKALIKES = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})
VERSION = 1
GROUP = 5  # letters
FINGERPRINT = 10  # bytes
SECRET = 10  # bytes
CHECK = 2  # bytes
CODE_LIMIT = 200  # letters that are read at most


@dataclass(frozen=True, slots=True)
class Invitation:
    """The contents of a code: address to dial, expected fingerprint and secret."""

    host: str  # an IP address
    port: int
    fingerprint: bytes
    secret: bytes

    def expects(self, public_key: bytes) -> bool:
        """Whether the peer that answered is the one that invited."""
        return hmac.compare_digest(self.fingerprint, fingerprint(public_key))


def fingerprint(public_key: bytes) -> bytes:
    """Return 10 bytes (80 bits) of a public key's hash: too many to match by trying keys."""
    return hashlib.sha256(b"shoal/invite/key\0" + public_key).digest()[:FINGERPRINT]


def encode(invitation: Invitation) -> str:
    """Return the code of an invitation, in groups of five letters."""
    address = ipaddress.ip_address(invitation.host)
    data = bytes([VERSION << 4 | address.version]) + address.packed
    data += invitation.port.to_bytes(2, "big") + invitation.fingerprint + invitation.secret
    letters = _letters(data + _check(data))
    return "-".join(letters[at : at + GROUP] for at in range(0, len(letters), GROUP))


def decode(code: str) -> Invitation:
    """Read a code. Case, spaces and look-alike letters do not matter. Raises BadInvite."""
    data = _bytes(code)
    body, check = data[:-CHECK], data[-CHECK:]
    if not hmac.compare_digest(check, _check(body)):
        raise _mistyped()
    if body[0] >> 4 != VERSION:
        raise BadInvite(
            f"the invitation code is of version {body[0] >> 4}, but this shoal reads {VERSION}",
            hint="update shoal on both machines",
        )
    size = {4: 4, 6: 16}.get(body[0] & 15, 0)
    if size == 0 or len(body) != 1 + size + 2 + FINGERPRINT + SECRET:
        raise _wrong_length()
    host = str(ipaddress.ip_address(body[1 : 1 + size]))
    rest = body[1 + size :]
    port = int.from_bytes(rest[:2], "big")
    return Invitation(host, port, rest[2 : 2 + FINGERPRINT], rest[2 + FINGERPRINT :])


def _check(data: bytes) -> bytes:
    return hashlib.sha256(b"shoal/invite/check\0" + data).digest()[:CHECK]


def _letters(data: bytes) -> str:
    count = -(-len(data) * 8 // 5)
    number = int.from_bytes(data, "big") << (count * 5 - len(data) * 8)
    return "".join(ALPHABET[number >> (5 * at) & 31] for at in reversed(range(count)))


def _bytes(code: str) -> bytes:
    letters = code[:CODE_LIMIT].strip().upper().translate(LOOKALIKES)
    wrong = sorted(set(letters) - set(ALPHABET))
    if wrong:
        raise BadInvite(
            f"the invitation code has a character that no code has: {wrong[0]!a}",
            hint="compare it with what `shoal invite` printed",
        )
    size = len(letters) * 5 // 8
    if size < 1 + 4 + 2 + FINGERPRINT + SECRET + CHECK:
        raise _wrong_length()
    number = 0
    for letter in letters:
        number = number << 5 | ALPHABET.index(letter)
    padding = len(letters) * 5 - size * 8
    if number & ((1 << padding) - 1):
        raise _mistyped()
    return (number >> padding).to_bytes(size, "big")


def _mistyped() -> BadInvite:
    return BadInvite(
        "the invitation code has a typing error",
        hint="compare it with what `shoal invite` printed; letters O, I, L read as 0, 1, 1",
    )


def _wrong_length() -> BadInvite:
    return BadInvite(
        "the invitation code is cut short or too long",
        hint="copy the whole line that `shoal invite` printed",
    )


def invitation_key(secret: bytes) -> bytes:
    """Return the 32-byte key that both sides prove by HMAC (`transport/handshake/hello.py`)."""
    return hashlib.sha256(b"shoal/invite/secret\0" + secret).digest()


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A code that was issued: its key, expiry (wall seconds), remaining joins, and the role that
    it grants in a private group."""

    key: bytes
    expires: float
    uses: int
    role: Role = Role.OPERATOR


class InviteBook:
    """The issued codes that are still valid; the `Invitations` of this node's admission.

    Bounded. Stores keys derived from the codes, not the codes themselves. Its file has mode 0600,
    like that of every key in the data folder.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        outstanding: Iterable[Outstanding] = (),
    ) -> None:
        self._wall = wall
        self._by_ident = {invitation_ident(item.key): item for item in outstanding}
        self._redeemed: dict[bytes, Role] = {}  # roles of codes that a peer has used

    def outstanding(self) -> dict[bytes, Outstanding]:
        """Return the codes that are still valid, by their 8-byte ids."""
        self._forget()
        return dict(self._by_ident)

    def remove(self, ident: bytes) -> bool:
        """Revoke a code, also for peers that used it but have not joined yet. Return whether the
        code was known."""
        self._forget()
        redeemed = self._redeemed.pop(ident, None) is not None
        return self._by_ident.pop(ident, None) is not None or redeemed

    def role(self, ident: bytes) -> Role | None:
        """Return the role of a code that a peer has used, even if it is used up. None if the code
        was revoked or never used."""
        return self._redeemed.get(ident)

    def add(self, secret: bytes, uses: int, lifetime: float, role: Role = Role.OPERATOR) -> float:
        """Store a new code and return its expiry (wall seconds).

        Raises NodeError if too many codes are outstanding.
        """
        self._forget()
        if len(self._by_ident) >= defaults.INVITE_LIMIT:
            raise NodeError(
                "too-many-invites",
                f"{defaults.INVITE_LIMIT} invitations are outstanding",
                hint="they expire after 24 hours; `shoal invite --uses N` makes a code for N joins",
            )
        key, expires = invitation_key(secret), self._wall() + lifetime
        self._by_ident[invitation_ident(key)] = Outstanding(key, expires, uses, role)
        return expires

    def find(self, ident: bytes) -> bytes | None:
        """Return the key of a valid code, or None."""
        self._forget()
        item = self._by_ident.get(ident)
        return None if item is None else item.key

    def used(self, ident: bytes) -> None:
        """Count one use of a code."""
        if (item := self._by_ident.get(ident)) is not None:
            self._by_ident[ident] = replace(item, uses=item.uses - 1)
            self._redeemed[ident] = item.role
            if len(self._redeemed) > defaults.REDEEMED:
                del self._redeemed[next(iter(self._redeemed))]
            self._forget()

    def _forget(self) -> None:
        now = self._wall()
        kept = {k: v for k, v in self._by_ident.items() if v.expires > now and v.uses > 0}
        self._by_ident = kept

    def encode(self) -> bytes:
        """Encode the book as JSON for the data folder."""
        items = [
            {
                "key": item.key.hex(),
                "expires": item.expires,
                "uses": item.uses,
                "role": item.role.word,
            }
            for item in self._by_ident.values()
        ]
        return json.dumps({"version": 1, "invites": items}).encode()


def decode_book(data: bytes) -> list[Outstanding]:
    """Decode the bytes of `InviteBook.encode`. Raises NodeError on anything else."""
    try:
        items = json.loads(data)["invites"][: defaults.INVITE_LIMIT]
        return [
            Outstanding(
                bytes.fromhex(item["key"]),
                float(item["expires"]),
                int(item["uses"]),
                ROLES[item["role"]],
            )
            for item in items
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise NodeError(
            "bad-file",
            "the file of outstanding invitations cannot be read",
            hint="remove `invites.json` from the data folder, which revokes all issued codes",
        ) from error
