"""Every constant of the transport, with its unit."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames (docs/spec/lane.md). Part of the protocol: both sides must agree.
ALPN: Final = b"shoal/1"
TIE: Final = b"shoal-tie/"
"""A second name that clients offer and nobody chooses: 16 hex digits behind it say which of two
that began as clients stays one."""
TIE_DIGITS: Final = 16
PROTOCOL_VERSIONS: Final = (1, 1)
"""The lowest and the highest version of the lane that this code speaks."""
FRAME_PAYLOAD_BYTES: Final = 64 * KIB
FRAME_HEAD_BYTES: Final = 32 * KIB
METHOD_BYTES: Final = 64
CODE_BYTES: Final = 32
HELLO_BYTES: Final = 4 * KIB
INCARNATION_BYTES: Final = 16

# Limits (bytes, counts, seconds); `Limits` says what each one bounds.
MESSAGE_BYTES: Final = 16 * MIB
STREAM_WINDOW_BYTES: Final = 1 * MIB
LINK_WINDOW_BYTES: Final = 16 * MIB
STREAMS: Final = 64
CALLS: Final = 256
BACKLOG_BYTES: Final = 32 * MIB
TOTAL_BYTES: Final = 512 * MIB
LINKS: Final = 512
HALF_OPEN: Final = 128
HALF_OPEN_PER_SUBNET: Final = 8
HALF_OPEN_LOOPBACK: Final = 128
ARRIVALS_BURST: Final = 64
ARRIVALS_PER_S: Final = 8.0
ALL_ARRIVALS_BURST: Final = 1024
ALL_ARRIVALS_PER_S: Final = 20.0
NETWORKS_FOUR: Final = ((24, 1), (16, 8))
NETWORKS_SIX: Final = ((64, 1), (56, 2), (48, 4), (32, 8))
"""Sizes of the networks that count as one source (`place.networks`): prefix length in bits, which
are whole bytes, and multiple of the smallest network's bound."""
TARGETS_FOUR: Final = ((32, 1), (24, 16))
TARGETS_SIX: Final = ((64, 1), (56, 2), (48, 4))
"""Sizes of the networks that count as one target (`place.targets`), likewise."""
LARGEST_SHARE: Final = 1 / 2
"""Largest part of a bound over all sources that one larger network may use."""
KEPT_SHARE: Final = 1 / 4
"""Part of the half-open connections that is reserved for networks not seen lately."""
KEPT_S: Final = 1.0
"""Arrivals reserved for networks not seen lately, in seconds of the rate of all arrivals; at most
`KEPT_SHARE` of the burst."""
LATELY_S: Final = 30.0
"""Seconds until a smallest network counts as not seen lately again. A larger one does so more
often, by its multiple."""
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 2.5
SILENT_S: Final = 3.5
QUIET_S: Final = 4.5
GRACE_S: Final = 20.0
HOLD_S: Final = 120.0

# The core's own pace.
REORDERED_IDS: Final = 16 * KIB
"""Ids a receiver remembers above the lowest it has not seen, a count."""
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 1 * MIB
"""An acknowledgement goes out by itself after so many frames or bytes."""
PATIENCE: Final = 1.1
"""So many times longer than `IDLE_S` the side that was dialled waits before it pings. TCP repeats a
lost ping after 0.2 s and 0.7 s, and both repetitions leave before `SILENT_S` ends."""
PROBED_BYTES: Final = 4 * KIB
"""Bulk under way below which the queueing delay is not measured, in bytes: it fills no buffer."""
LATER_S: Final = 1.0
"""How long a post that may leave later waits for something to leave with, in seconds."""
PING_S: Final = 30.0
"""A busy link measures its round trip at least this often."""
DOUBT_S: Final = 0.5
DOUBT_RTTS: Final = 3
"""A connection is pinged after so many seconds and round trips with frames under way and nothing
heard, and left for another one as long after that."""
HINTED_S: Final = 0.1
"""So many seconds and one round trip instead where the peer has left it for a worse one, or another
one was answered meanwhile."""
SUSPECT_S: Final = 1.5
"""So long, in seconds, after the last byte a way beside a doubtful relayed one is looked for."""
LAPSED_S: Final = 2.0
"""Seconds after the end of a used up circuit from which on its peer is in doubt: relays end each
circuit after two minutes, and each doubt costs a message to all peers of both ends."""
UNKNOWN_RTT_S: Final = 0.3
"""What the round trip counts as before the first pong, in seconds."""
LEGS: Final = 3
"""Connections that carry one link, a count."""
REDUNDANT_S: Final = 15.0
"""After so many seconds a second connection of the same way and medium is given up."""
SPARE_S: Final = 60.0
"""Seconds for which a direct connection must last before the relayed one beside it is closed."""
LONG_S: Final = 0.1
"""From this round trip on, in seconds, UDP carries a link rather than TCP (longpaths.py)."""
LONG_LOOK_S: Final = 1.0
LONG_RATE: Final = 1e6
"""With so many bytes per second over `LONG_LOOK_S`, a long TCP path gets a UDP one beside it."""
LONG_AGAIN_S: Final = 300.0
"""Between two attempts to get one, in seconds."""
STANDBY_S: Final = 10.0
"""Seconds without a byte before a connection that carries nothing is pinged."""
FRAME_OVERHEAD_BYTES: Final = 64
"""What a frame costs beside its bytes, so that empty ones are bounded too."""

# The shell's own pace.
BATCH_BYTES: Final = 512 * KIB
SMALL_BATCH_BYTES: Final = 16 * KIB
"""Bytes encrypted ahead of the kernel, which a token may have to wait behind."""
BATCH_S: Final = (0.005, 0.02)
"""A full batch that left faster, in seconds, doubles the next; one that left slower halves it."""
READ_BYTES: Final = 512 * KIB
SMALL_READ_BYTES: Final = 16 * KIB
TURN_S: Final = 0.01
"""A batch of frames that took longer, in seconds, makes the next read a small one."""
SEND_AHEAD_BYTES: Final = 512 * KIB
"""Bytes a stream's sender may run ahead of the wire."""
SMALL_PAYLOAD_BYTES: Final = 16 * KIB
"""Payloads up to this are copied, so that they do not pin the buffer they came in."""
GIVE_BACK_S: Final = 15.0
GIVE_BACK_BYTES: Final = 1 * MIB
"""Freed memory goes back to the operating system once fewer bytes than this have passed in
`GIVE_BACK_S` seconds, after more have."""
TICK_S: Final = 0.25
"""Between two looks, in seconds, at which links are quiet; well under `STALL_S`."""
HURRY_S: Final = 0.05
"""The same while frames are under way on one of them."""
ALARM_S: Final = 0.005
"""A call's timeout may be so much late, in seconds, where another one came just before."""
COALESCE_S: Final = 100e-6
"""Frames queued this soon after a direct write, in seconds, wait for the writer and leave together;
a call does not where no other is open."""
REDIAL_S: Final = 0.25
"""Between two attempts to resume a link."""
RESTORE_S: Final = 1.0
"""The least time, in seconds, a lost link gets to find a connection again."""
ROUND_S: Final = (3.0, 10.0)
"""A round of looking for a path holds up the next for so many seconds, in the first `GRACE_S` and
later."""
PROBE_S: Final = 1.0
"""Between two looks, in seconds, whether the peer that dialled still listens."""
HELLO_S: Final = 3.5
"""How long the hello of a first connection to a peer may take, in seconds: other dials to that
peer wait for it."""
DUPLICATE_S: Final = 2.0
"""How long a dial that met the peer's own waits, in seconds, for that link."""
STALL_S: Final = 0.5
"""A timer this late means our own loop stood still: the peer is not to blame."""
ACCEPT_PAUSE_S: Final = 0.01
ACCEPT_BURST: Final = 16
"""With more half-open connections than this, accepts are this many seconds apart."""
REFUSALS_BURST: Final = 128
REFUSALS_PER_S: Final = 20.0
"""Connections closed as soon as they were accepted, at once (a count) and per second in the long
run; with more of them accepts are `ACCEPT_PAUSE_S` apart, and the kernel turns the others away."""
LINGER_S: Final = 0.25
"""How long a connection stays, in seconds, for the peer to read our last words."""
REFUSAL_S: Final = 1.0
"""How long a refusal may take to leave before its connection is closed."""

HTTPS_PORT: Final = 443
"""The TCP port that nearly every network lets out."""
LOW_PORT: Final = 1024
"""Ports below are of a system's own services: nothing is sent to one, `HTTPS_PORT` apart, because
a peer says that it is there."""
RATE_KEYS: Final = 4096
"""Keys whose rate is remembered, a count (rates.py)."""

# Peers: what is looked at before anything is known of them.
ADDRESS_LETTERS: Final = 400
CERTIFICATE_BYTES: Final = 4 * KIB
TLS_HANDSHAKE_BYTES: Final = 64 * KIB

# The ladder (ladder.py, climb.py).
STAGGER_S: Final = 0.25
"""Between two addresses of a peer that are tried, in seconds (RFC 8305, section 8)."""
CLIMB_S: Final = 10.0
"""How long one address may take, in seconds."""
CLIMB_ADDRESSES: Final = 8
CLIMB_CIRCUITS: Final = 4
RELAYS_STAGGER_S: Final = 1.0
"""Seconds between attempts through two relays: a circuit takes several round trips to open, and a
relay lends little."""
OPENINGS_PER_RELAY: Final = 3
"""Circuits that this node opens at once through one relay, a count."""
CLIMB_OWN: Final = 3
"""Relays of this node's own that are tried though the peer does not name them, a count."""
OWN_RELAYS_S: Final = 1.5
"""After so many seconds, when what the peer names has had its chance."""
FOREIGN_S: Final = 15.0
"""Between two looks whether the place at a relay of libp2p's is still held, in seconds."""
FETCH_LOOK_S: Final = 0.1
"""Between two looks, in seconds, whether whom a relay wants to reach for others is linked."""
BOTH_S: Final = 0.3
"""How long a relay's other IP version is waited for, in seconds, once one has answered."""
FAMILY_S: Final = 60.0
"""Between two tries of an IP version of a relay, in seconds."""
FIND_S: Final = 0.5
"""Between two rounds of looking for a path of a link that has none, in seconds."""
PUNCH_PAUSES_S: Final = (4.0, 10.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""After which a relayed link is punched for again, in seconds, the last one for ever; a change of
the network comes between."""
FUTILE_S: Final = 120.0
"""It is the shortest such pause where ordinary checks cannot succeed between the two routers, in
seconds."""
WHERE: Final = (16, 0.5)
"""Questions of one peer, where another one is seen, that are answered: at once and per second."""
WHERE_S: Final = 2.0
"""How long an answer to that may take, in seconds."""
VOUCHERS: Final = 6
"""Linked peers that are asked, a count."""
NETWORK_S: Final = 2.0
"""Between two looks at the own addresses, in seconds."""
SLEPT_S: Final = 5.0
"""The wall clock this far ahead of where it was means that this machine slept."""
AIM_MISSES: Final = 120
"""Failed dials in ten minutes to one target (`place.targets`) where a peer has answered this node,
a count."""
AIM_STRANGE: Final = 6
"""Failed TCP dials in ten minutes to a target where no peer has answered, a count."""
AIM_STRANGE_UDP: Final = (1, 120.0)
"""Failed QUIC dials to such a target, a count, and its window in seconds. One is up to 9 kB."""
AIM_NEAR: Final = 16
"""Private addresses without an answering peer that may be dialled in ten minutes, a count."""
AIM_TARGETS: Final = 16 * KIB
"""Targets with recent failures that are remembered, a count. Beyond it no new target is dialled."""
AIM_KNOWN: Final = 4 * KIB
"""Targets where a peer has answered that are remembered, a count."""
AIM_UDP_COST: Final = 4
"""A dial by QUIC counts as so many."""
DATABASE_PAGE: Final = 4 * KIB
"""Bytes that a database reads and writes together."""
DATABASE_CACHE: Final = MIB
"""Bytes of a database that are kept in memory, at most."""
DATABASE_LOG: Final = MIB
"""Bytes of a database's log from which on they go into its file."""
DATABASE_BUSY_MS: Final = 2000
"""How long another process that has the database is waited for, in milliseconds."""
