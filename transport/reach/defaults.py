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
PROBE_SOCKETS: Final = 4
"""The first one talks to all observers, the others to one each: without a liar's, three
mappings are left, enough to see a pattern."""
STRANGERS: Final = 1
"""Peers that a socket asks to send to it although it has never sent to them, a count."""
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
LINE_SHARE: Final = 0.66
"""Of the mappings, at least this share and four lie on the line: one liar of three may be off."""
PADDING_BYTES: Final = 36
"""Of a PADDING attribute that makes a request (68 bytes) larger than every answer (52)."""
NONCE_BYTES: Final = 16
"""What a dial-back brings, so that it is recognised."""

# Answers to Binding requests (observer.py).
SMALLEST_ANSWER_BYTES: Final = 40
"""A header, an IPv4 address, a fingerprint: what is smaller is not answered."""
ANSWER_BURST: Final = 32
ANSWERS_PER_S: Final = 4.0
"""Answers to one /24 or /64 at once, and per second (`limits.SourceRates`)."""
ALL_ANSWERS_BURST: Final = 400
ALL_ANSWERS_PER_S: Final = 100.0
"""The same to everybody: 100 answers are 5 kB a second."""

# Dial-backs (dialback.py, dialler.py).
DIALBACK_BYTE: Final = b"\x01"
"""What a dial-back over TCP begins with; behind it the nonce (docs/spec/reach.md)."""
PAYMENT_BYTES: Final = (30_000, 100_000)
"""What a dial-back to another address than the asker's costs the asker: a number between these,
drawn by the server (AutoNAT v2)."""
PAYMENT_S: Final = 60.0
"""How long a demand for payment stands."""
PAYMENTS_PER_ASKER: Final = 8
"""Demands to one asker that stand at once, a count: it may ask for several dial-backs at a time."""
PAYMENTS: Final = 256
"""Askers whose demands are remembered, a count; of each `OWN_PLACES`."""
ASKER_BURST: Final = 16
ASKER_PER_S: Final = 16 / 600
"""Dial-backs for one asker: a measurement asks one server for about 8."""
TARGET_BURST: Final = 16
TARGET_PER_S: Final = 0.1
"""Dial-backs to one /24 or /64 where the asker is seen, at once and per second; a larger network
gets a multiple of them (`limits.SourceRates`)."""
FOREIGN_BURST: Final = 4
FOREIGN_PER_S: Final = 1 / 60
"""Dial-backs to other targets: the asker has paid for them, the target has not asked for any."""
ALL_BURST: Final = 64
ALL_PER_S: Final = 2.0
"""Dial-backs for everybody together."""
AT_ONCE: Final = 16
"""Dial-backs under way, a count."""
CONNECT_S: Final = 5.0
"""How long a dial-back over TCP may take: a lost SYN is repeated after 1 s and 3 s."""
COPIES_S: Final = (0.0, 0.25)
"""When, after the first, the copies of a dial-back over UDP leave."""
AWAITED: Final = 64
"""Nonces of this node's own requests that are waited for, a count."""

# Views of TCP connections (tcpviews.py).
TCP_VIEWS: Final = 16
"""Observers whose latest view is kept, a count."""
TCP_VIEW_S: Final = 3600.0
"""How long a view counts: a link's connection may be old, its mapping is held by it."""

# The service (service.py).
MEASURE_S: Final = 1800.0
"""From one measurement to the next, where nothing changed."""
BOUGHT_S: Final = 1500.0
"""Seconds for which the result of a paid dial-back is reused."""
AGAIN_S: Final = 120.0
"""Seconds until the next measurement where dial-backs stayed without an answer."""
MEASURE_GAP_S: Final = 15.0
"""Between two measurements at least, whatever changes."""
SETTLE_S: Final = 2.0
"""After the first link, for further ones, before the first measurement."""
SETTLES: Final = 2
"""Such waits while fewer than `ENOUGH_OBSERVERS` peers could observe, a count."""
ENOUGH_OBSERVERS: Final = 3
"""With fewer observers a measurement is repeated when links come up."""
LOOK_S: Final = 60.0
"""From one look at where the own UDP port is seen to the next."""
LOOK_OBSERVERS: Final = 3
"""Observers that have to agree in a measurement on where the own port is seen, a count."""
INTERFACES_S: Final = 10.0
"""From one look at this machine's addresses to the next."""
ASK_S: Final = 5.0
"""How long a peer has to say what it offers."""
OFFER_S: Final = 900.0
"""How long that is believed."""
OBSERVER_LINKS: Final = 16
"""Links that are asked for what they offer in one measurement, a count."""
OWN_PLACES: Final = 8
"""Addresses of this node that peers are asked to dial in one measurement, a count."""
DIALLERS: Final = 2
"""Peers that are asked to dial each, a count."""
