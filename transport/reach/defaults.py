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

# Classification (natkind.py), in counts and seconds.
OBSERVERS: Final = 4
"""Peers that are asked in one measurement, a count; three outvote a liar."""
PROBE_SOCKETS: Final = 3
"""The first one talks to all observers, the others to one each."""
PROBE_GAP_S: Final = 0.02
"""Between two first requests, so that a NAT deals with them in their order."""
RETRY_S: Final = (0.4, 0.6, 1.0)
"""How long each try of a request waits for its answer."""
STRAGGLER_S: Final = 0.7
"""How long a dial-back is waited for after its sender said that it was sent."""
DIALBACK_S: Final = 8.0
"""How long a peer has for a dial-back, payment aside."""
LINE_PORTS: Final = 8
"""How far, in ports, a mapping may lie off the line of a sequential allocation."""
LINE_STEP_PORTS: Final = 32
"""The longest step that still counts as sequential."""
LINE_SHARE: Final = 0.6
"""Of the mappings, at least this share lies on the line: one liar of three may be off it."""
PADDING_BYTES: Final = 108
"""Of a PADDING attribute that makes a request (140 bytes) larger than every answer (108)."""
NONCE_BYTES: Final = 16
"""What a dial-back brings, so that it is recognised."""

# Answers to Binding requests (observer.py).
SMALLEST_ANSWER_BYTES: Final = 40
"""A header, an IPv4 address, a fingerprint: what is smaller is not answered."""
ANSWER_BURST: Final = 32
ANSWERS_PER_S: Final = 4.0
"""Answers to one subnet (/24, or /56 of IPv6): so many at once, and a second."""
ALL_ANSWERS_BURST: Final = 400
ALL_ANSWERS_PER_S: Final = 100.0
"""The same to everybody: 100 answers are 10 kB a second."""
RATE_KEYS: Final = 4096
"""Subnets or peers whose rate is remembered, a count."""
