"""Constants of reachability measurements, with their units."""

from typing import Final

# STUN (stun.py).
STUN_BYTES: Final = 1280
"""Size of the largest message that is parsed, in bytes. Every IPv6 path carries packets of this
size (RFC 8489, section 6.1)."""
STUN_ATTRIBUTES: Final = 32
"""Largest number of attributes in one message. Messages with more are dropped."""
USERNAME_BYTES: Final = 508
"""Size of the longest USERNAME, in bytes (RFC 8489, section 14.3: fewer than 509)."""
REASON_BYTES: Final = 763
"""Size of the longest reason phrase of an error, in bytes (RFC 8489, section 14.8)."""

# Classification (natkind.py), in counts and seconds.
OBSERVERS: Final = 4
"""Observers that are asked in one measurement, a count. Three of them outvote one that lies."""
PROBE_SOCKETS: Final = 4
"""Sockets of one measurement, a count. The first socket sends to all observers, each of the others
to a single observer. If the reply of one observer is false, three mappings are left, which are
enough to recognize a pattern of port allocation."""
STRANGERS: Final = 1
"""Peers that are asked to send to a socket that has never sent to them, a count for each socket."""
PROBE_GAP_S: Final = 0.02
"""Time between the first sendings of two successive requests, in seconds. It makes a NAT create
their mappings in this order."""
RETRY_S: Final = (0.4, 0.6, 1.0)
"""Time to wait for a reply after each sending of a request, in seconds."""
STRAGGLER_S: Final = 0.7
"""How long a dial-back may take to arrive after the peer has reported it as sent, in seconds."""
DIALBACK_S: Final = 8.0
"""How long a peer may take to reply to a request for a dial-back without payment, in seconds."""
LINE_PORTS: Final = 8
"""How far the outer port of a mapping may lie from the line of a sequential allocation, in
ports."""
LINE_STEP_PORTS: Final = 32
"""The largest step between successive ports that still counts as sequential, in ports."""
LINE_SHARE: Final = 0.66
"""Smallest fraction of the mappings that must lie on the line of a sequential allocation. At least
four mappings must lie on it as well. One of three observers may have reported false ports."""
PADDING_BYTES: Final = 36
"""Size in bytes of the PADDING attribute. It makes a request (68 bytes) larger than every reply (at
most 52 bytes)."""
NONCE_BYTES: Final = 16
"""Size in bytes of the random value by which this node recognizes a dial-back that it requested."""

# Replies to Binding requests (observer.py).
SMALLEST_ANSWER_BYTES: Final = 40
"""Size in bytes of the smallest reply: a header, an IPv4 address and a fingerprint. Smaller
requests get no reply."""
ANSWER_BURST: Final = 32
ANSWERS_PER_S: Final = 4.0
"""Replies to one /24 (IPv4) or /64 (IPv6): largest burst, and replies per second. A larger network
gets a multiple of them (`rates.SourceRates`)."""
ALL_ANSWERS_BURST: Final = 400
ALL_ANSWERS_PER_S: Final = 100.0
"""Replies to all sources together: largest burst, and replies per second. 100 replies are 5 kB."""

# Dial-backs (dialback.py, dialler.py).
DIALBACK_BYTE: Final = b"\x01"
"""First byte of a dial-back over TCP. The nonce follows it (docs/spec/reach.md)."""
PAYMENT_BYTES: Final = (30_000, 100_000)
"""Price in bytes of a dial-back to an address at which the server does not see the asker. The
server chooses a random number in this range (as in AutoNAT v2)."""
PAYMENT_S: Final = 60.0
"""How long a demand for payment is valid, in seconds."""
PAYMENTS_PER_ASKER: Final = 8
"""Valid demands to one asker, a count. An asker may request several dial-backs at the same time."""
PAYMENTS: Final = 256
"""Demands to all askers that are remembered, a count."""
ASKER_BURST: Final = 16
ASKER_PER_S: Final = 16 / 600
"""Dial-backs for one asker: largest burst, and rate per second. One measurement requests about 8 of
them from one server."""
TARGET_BURST: Final = 16
TARGET_PER_S: Final = 0.1
"""Dial-backs to one /24 (IPv4) or /64 (IPv6) in which the asker is seen: largest burst, and rate
per second. A larger network gets a multiple of them (`rates.SourceRates`)."""
FOREIGN_BURST: Final = 4
FOREIGN_PER_S: Final = 1 / 60
"""Dial-backs to one /24 (IPv4) or /64 (IPv6) in which the asker is not seen: largest burst, and
rate per second. The asker has paid for them, but the owner of the target may not have agreed."""
ALL_BURST: Final = 64
ALL_PER_S: Final = 2.0
"""Dial-backs for all askers together: largest burst, and rate per second."""
AT_ONCE: Final = 16
"""Concurrent dial-backs, a count."""
CONNECT_S: Final = 5.0
"""How long a dial-back over TCP may take, in seconds. A lost SYN is repeated after 1 s and 3 s."""
COPIES_S: Final = (0.0, 0.25)
"""When the copies of a dial-back over UDP are sent, in seconds after its beginning."""
AWAITED: Final = 64
"""Dial-backs requested by this node whose nonces are remembered, a count."""

# Views of TCP connections (tcpviews.py).
TCP_VIEWS: Final = 16
"""IP addresses of observers whose latest view is remembered, a count."""
TCP_VIEW_S: Final = 3600.0
"""How long a view counts, in seconds. The connection of a link keeps its NAT mapping alive, so an
old view is still true."""

# The service (service.py).
MEASURE_S: Final = 1800.0
"""Time from one measurement to the next if nothing has changed, in seconds."""
BOUGHT_S: Final = 1500.0
"""How long the result of a paid dial-back is reused, in seconds."""
AGAIN_S: Final = 120.0
"""Time to the next measurement if some address of this node was not dialled by any peer, in
seconds."""
MEASURE_GAP_S: Final = 15.0
"""The shortest time between two measurements, in seconds."""
SETTLE_S: Final = 2.0
"""Time to wait for more links between the first link and the first measurement, in seconds."""
SETTLES: Final = 2
"""Largest number of waits of `SETTLE_S` seconds before the first measurement. There is no further
wait once `ENOUGH_OBSERVERS` observers are linked."""
ENOUGH_OBSERVERS: Final = 3
"""Observers that a measurement should have, a count. A measurement with fewer observers is repeated
when new links come up."""
LOOK_S: Final = 60.0
"""Time between two checks of where an observer sees this node's UDP port, in seconds."""
LOOK_OBSERVERS: Final = 3
"""Observers that a measurement asks where this node's UDP port is seen, a count."""
INTERFACES_S: Final = 10.0
"""Time between two checks of this machine's addresses, in seconds."""
ASK_S: Final = 5.0
"""How long a peer may take to reply to `reach.observe` with its offer, in seconds."""
OFFER_S: Final = 900.0
"""How long a peer's offer is cached, in seconds."""
OBSERVER_LINKS: Final = 16
"""Linked peers that are asked for their offer in one measurement, a count."""
OWN_PLACES: Final = 8
"""Addresses of this node that peers are asked to dial in one measurement, a count."""
DIALLERS: Final = 2
"""Peers that are asked at the same time to dial one address of this node, a count."""
