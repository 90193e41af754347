"""Every constant of `reach`, with its unit."""

from typing import Final

# STUN (stun.py).
STUN_BYTES: Final = 1280
"""The largest message that is looked at: what any IPv6 path carries (RFC 8489, 6.1)."""
STUN_ATTRIBUTES: Final = 32
"""Attributes of one message that are looked at, a count."""
USERNAME_BYTES: Final = 508
"""RFC 8489, 14.3: a USERNAME has fewer than 509 bytes."""
REASON_BYTES: Final = 763
"""RFC 8489, 14.8: the longest reason phrase."""
