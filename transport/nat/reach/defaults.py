"""Every constant of `reach`, with its unit."""

from typing import Final

# STUN (stun.py).
STUN_BYTES: Final = 1280
"""The largest message that is parsed, in bytes: any IPv6 path carries it (RFC 8489, 6.1)."""
STUN_ATTRIBUTES: Final = 32
"""Attributes of one message that are parsed, a count."""
USERNAME_BYTES: Final = 508
"""RFC 8489, 14.3: a USERNAME has fewer than 509 bytes."""
REASON_BYTES: Final = 763
"""RFC 8489, 14.8: the longest reason phrase."""

# Classification (natkind.py), in counts and seconds.
OBSERVERS: Final = 4
"""Peers that are asked in one measurement, a count. Three outvote one liar."""
PROBE_SOCKETS: Final = 4
"""Sockets of a measurement, a count. The first talks to all observers, the others to one each.
Without a liar's, three mappings are left, enough to see a pattern."""
STRANGERS: Final = 1
"""Peers that a socket asks to send to it although it has never sent to them, a count."""
PROBE_GAP_S: Final = 0.02
"""Time between two first requests, so that a NAT handles them in order."""
RETRY_S: Final = (0.4, 0.6, 1.0)
"""How long each try of a request waits for its reply."""
STRAGGLER_S: Final = 0.7
"""How long a dial-back may take to arrive after its sender said that it was sent."""
DIALBACK_S: Final = 8.0
"""How long a peer may take for a dial-back, without payment."""
LINE_PORTS: Final = 8
"""How far a mapping may be off the line of a sequential allocation, in ports."""
LINE_STEP_PORTS: Final = 32
"""The longest step that still counts as sequential, in ports."""
LINE_SHARE: Final = 0.66
"""The least share of mappings on the line, and at least four: one liar of three may be off."""
PADDING_BYTES: Final = 36
"""Size of a PADDING attribute that makes a request (68 bytes) larger than every reply (52)."""
NONCE_BYTES: Final = 16
"""Size of the value by which a dial-back is recognized."""

# Replies to Binding requests (observer.py).
SMALLEST_ANSWER_BYTES: Final = 40
"""Size of a header, an IPv4 address and a fingerprint. Smaller requests get no reply."""
ANSWER_BURST: Final = 32
ANSWERS_PER_S: Final = 4.0
"""Replies to one /24 or /64: a burst, and per second (`rates.SourceRates`)."""
ALL_ANSWERS_BURST: Final = 400
ALL_ANSWERS_PER_S: Final = 100.0
"""Replies to all sources, likewise: 100 replies are 5 kB."""

# Dial-backs (dialback.py, dialler.py).
DIALBACK_BYTE: Final = b"\x01"
"""First byte of a dial-back over TCP; the nonce follows (docs/spec/reach.md)."""
PAYMENT_BYTES: Final = (30_000, 100_000)
"""Price of a dial-back to an address at which the server does not see the asker, in bytes: the
server picks a random number between these (AutoNAT v2)."""
PAYMENT_S: Final = 60.0
"""How long a demand for payment is valid."""
PAYMENTS_PER_ASKER: Final = 8
"""Valid demands to one asker, a count: it may ask for several dial-backs at the same time."""
PAYMENTS: Final = 256
"""Demands that are remembered, a count."""
ASKER_BURST: Final = 16
ASKER_PER_S: Final = 16 / 600
"""Dial-backs for one asker, burst and per second: a measurement needs about 8 of one server."""
TARGET_BURST: Final = 16
TARGET_PER_S: Final = 0.1
"""Dial-backs to one /24 or /64 at which the asker is seen, burst and per second. A larger network
gets a multiple of them (`rates.SourceRates`)."""
FOREIGN_BURST: Final = 4
FOREIGN_PER_S: Final = 1 / 60
"""Dial-backs to other targets: the asker has paid for them, but the target has not asked."""
ALL_BURST: Final = 64
ALL_PER_S: Final = 2.0
"""Dial-backs for all askers together, burst and per second."""
AT_ONCE: Final = 16
"""Concurrent dial-backs, a count."""
CONNECT_S: Final = 5.0
"""How long a dial-back over TCP may take: a lost SYN is repeated after 1 s and 3 s."""
COPIES_S: Final = (0.0, 0.25)
"""When the copies of a dial-back over UDP leave, in seconds after it began."""
AWAITED: Final = 64
"""Nonces of this node's own requests that are remembered, a count."""

# Views of TCP connections (tcpviews.py).
TCP_VIEWS: Final = 16
"""Observers whose latest view is remembered, a count."""
TCP_VIEW_S: Final = 3600.0
"""How long a view counts: an old connection of a link still holds its mapping."""

# The service (service.py).
MEASURE_S: Final = 1800.0
"""Time from one measurement to the next, if nothing changed."""
BOUGHT_S: Final = 1500.0
"""Seconds for which the result of a paid dial-back is reused."""
AGAIN_S: Final = 120.0
"""Seconds until the next measurement if dial-backs stayed without a reply."""
MEASURE_GAP_S: Final = 15.0
"""The least time between two measurements, whatever changes."""
SETTLE_S: Final = 2.0
"""Time to wait for more links after the first, before the first measurement."""
SETTLES: Final = 2
"""Such waits while fewer than `ENOUGH_OBSERVERS` peers could observe, a count."""
ENOUGH_OBSERVERS: Final = 3
"""With fewer observers a measurement is repeated when links come up."""
LOOK_S: Final = 60.0
"""Time between two checks of where this node's UDP port is seen."""
LOOK_OBSERVERS: Final = 3
"""Observers that a measurement asks where this node's UDP port is seen, a count."""
INTERFACES_S: Final = 10.0
"""Time between two checks of this machine's addresses."""
ASK_S: Final = 5.0
"""How long a peer may take to say what it offers."""
OFFER_S: Final = 900.0
"""How long such a reply is valid."""
OBSERVER_LINKS: Final = 16
"""Links whose peers are asked for their offer in one measurement, a count."""
OWN_PLACES: Final = 8
"""Addresses of this node that peers are asked to dial in one measurement, a count."""
DIALLERS: Final = 2
"""Peers that are asked to dial each address, a count."""
