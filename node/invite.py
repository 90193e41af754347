"""Invitations: short codes that hold a node's address, its fingerprint, and a secret.

A code is Crockford's base32 (https://www.crockford.com/base32.html) of

    version (4 bits) · address kind (4 bits: 4 or 6) · IP address (4 or 16 bytes) · port (2) ·
    fingerprint (10: the first bytes of a hash of the public key) · secret (10) · check (2)

in groups of five letters; sizes without a unit are in bytes. With the fingerprint, a joining node
checks that the peer which it has reached is the inviter. With the secret, it proves to the inviter
that it is invited (docs/spec/control.md).
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
    """The contents of an invitation code: the address to dial, the fingerprint of the inviter's
    key, and the secret."""

    host: str  # an IP address
    port: int
    fingerprint: bytes
    secret: bytes

    def expects(self, public_key: bytes) -> bool:
        """Return whether this public key is the inviter's key. The caller has verified before that
        the peer owns the key."""
        return hmac.compare_digest(self.fingerprint, fingerprint(public_key))


def fingerprint(public_key: bytes) -> bytes:
    """Return 10 bytes of a public key's hash. 80 bits are too many to find another key with the
    same fingerprint by trial."""
    return hashlib.sha256(b"shoal/invite/key\0" + public_key).digest()[:FINGERPRINT]


def encode(invitation: Invitation) -> str:
    """Return the code of an invitation, in groups of five letters separated by `-`."""
    address = ipaddress.ip_address(invitation.host)
    data = bytes([VERSION << 4 | address.version]) + address.packed
    data += invitation.port.to_bytes(2, "big") + invitation.fingerprint + invitation.secret
    letters = _letters(data + _check(data))
    return "-".join(letters[at : at + GROUP] for at in range(0, len(letters), GROUP))


def decode(code: str) -> Invitation:
    """Parse an invitation code. Case, spaces and look-alike letters do not matter.

    Raises BadInvite if the code has a typing error, or is of another version.
    """
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
    """Derive the 32-byte key from an invitation's secret. Both sides prove by HMAC that they know
    the key (`transport/handshake/hello.py`)."""
    return hashlib.sha256(b"shoal/invite/secret\0" + secret).digest()


@dataclass(frozen=True, slots=True)
class Outstanding:
    """An invitation of this node that can still be used.

    `key` is derived from the code's secret. `expires` is in seconds of the wall clock. `uses` is
    the number of joins that are left. `role` is the role that the invitation grants in a private
    group.
    """

    key: bytes
    expires: float
    uses: int
    role: Role = Role.OPERATOR


class InviteBook:
    """The invitations of one node that can still be used; its admission check looks codes up here.

    The number of invitations is bounded. The book has keys that are derived from the codes, not the
    codes themselves. It is stored with mode 0600, as every file with keys in the data folder is.
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
        """Return the invitations that can still be used, by their 8-byte ids."""
        self._forget()
        return dict(self._by_ident)

    def remove(self, ident: bytes) -> bool:
        """Revoke an invitation. This also stops peers that have used it but have not finished
        joining.

        Returns whether the invitation was known.
        """
        self._forget()
        redeemed = self._redeemed.pop(ident, None) is not None
        return self._by_ident.pop(ident, None) is not None or redeemed

    def role(self, ident: bytes) -> Role | None:
        """Return the role that a used invitation grants, even if it allows no further joins.

        Returns None if the invitation was revoked or has never been used.
        """
        return self._redeemed.get(ident)

    def add(self, secret: bytes, uses: int, lifetime: float, role: Role = Role.OPERATOR) -> float:
        """Store a new invitation and return the time of its expiry, in seconds of the wall clock.

        `lifetime` is in seconds. Raises NodeError `too-many-invites` if INVITE_LIMIT invitations
        are outstanding.
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
        """Return the key of the invitation with this id. Returns None if it is unknown, expired or
        used up."""
        self._forget()
        item = self._by_ident.get(ident)
        return None if item is None else item.key

    def used(self, ident: bytes) -> None:
        """Count one join with the invitation, and remember its role for the peer that joins."""
        if (item := self._by_ident.get(ident)) is not None:
            self._by_ident[ident] = replace(item, uses=item.uses - 1)
            self._redeemed[ident] = item.role
            if len(self._redeemed) > defaults.REDEEMED:
                del self._redeemed[next(iter(self._redeemed))]
            self._forget()

    def _forget(self) -> None:
        """Remove the invitations that have expired or are used up."""
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
    """Decode what `InviteBook.encode` has written. Raises NodeError `bad-file` if the data is
    anything else."""
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
