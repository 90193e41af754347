"""ICE's connectivity checks as browsers speak them: STUN sealed with HMAC-SHA1 (RFC 8445, 7).

`reach/stun.py` reads both seals and writes the newer one, which no browser knows.
"""

import hmac
import zlib
from typing import Final

from ..datagrams import Place
from ..reach.stun import FINGERPRINT_XOR, Kind, Message, encode

_HEADER_BYTES: Final = 20
_INTEGRITY_BYTES: Final = 24  # an attribute's head and 20 bytes of SHA-1
_FINGERPRINT_BYTES: Final = 8


def sealed(message: Message, password: str) -> bytes:
    """The bytes of a message with MESSAGE-INTEGRITY (RFC 8489, 14.5) and FINGERPRINT (14.7)."""
    begin = encode(message)[:-_FINGERPRINT_BYTES]
    begin = _with_length(begin, len(begin) + _INTEGRITY_BYTES)
    mac = hmac.digest(password.encode(), begin, "sha1")
    begin = _with_length(begin + b"\x00\x08\x00\x14" + mac, len(begin) + 32)
    crc = zlib.crc32(begin) ^ FINGERPRINT_XOR
    return begin + b"\x80\x28\x00\x04" + crc.to_bytes(4)


def success(transaction: bytes, source: Place, password: str) -> bytes:
    """The answer to a check that came from `source`."""
    return sealed(Message(Kind.SUCCESS, transaction, mapped=source), password)


def _with_length(begin: bytes, total: int) -> bytes:
    """The bytes with a length field as if the message ended at `total`."""
    return begin[:2] + (total - _HEADER_BYTES).to_bytes(2) + begin[4:]
