"""Every constant of the transport, with its unit."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames (docs/spec/lane.md). Part of the protocol: both sides must agree.
ALPN: Final = b"shoal/1"
TIE: Final = b"shoal-tie/"
"""Prefix of a second ALPN name that clients offer and no server selects. The 16 hex digits after it
decide which side stays the client if both began as clients."""
TIE_DIGITS: Final = 16
PROTOCOL_VERSIONS: Final = (1, 1)
"""The lowest and the highest version of the lane that this code speaks."""
FRAME_PAYLOAD_BYTES: Final = 64 * KIB
FRAME_HEAD_BYTES: Final = 32 * KIB
METHOD_BYTES: Final = 64
CODE_BYTES: Final = 32
HELLO_BYTES: Final = 4 * KIB
INCARNATION_BYTES: Final = 16

# Limits (bytes, counts, seconds). `Limits` says what each one bounds.
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
"""Sizes of the networks that count as one source (`networks.networks`): prefix length in bits,
which are whole bytes, and multiple of the smallest network's bound."""
TARGETS_FOUR: Final = ((32, 1), (24, 16))
TARGETS_SIX: Final = ((64, 1), (56, 2), (48, 4))
"""Sizes of the networks that count as one target (`networks.targets`), likewise."""
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

# The timing of the lane's core.
REORDERED_IDS: Final = 16 * KIB
"""Ids that a receiver remembers above the lowest one it has not seen, a count."""
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 1 * MIB
"""An acknowledgement is sent by itself after this many frames or bytes."""
PATIENCE: Final = 1.1
"""The side that was dialled waits this many times `IDLE_S` before it pings. TCP repeats a lost ping
after 0.2 s and 0.7 s, and both repetitions leave before `SILENT_S` ends."""
PROBED_BYTES: Final = 4 * KIB
"""Bulk in flight below which the queueing delay is not measured, in bytes: it fills no buffer."""
LATER_S: Final = 1.0
"""How long a post that may be delayed waits for another frame to leave with, in seconds."""
PING_S: Final = 30.0
"""The longest time between measurements of a busy link's round trip, in seconds."""
DOUBT_S: Final = 0.5
DOUBT_RTTS: Final = 3
"""A connection with frames in flight is pinged after this many seconds plus round trips of silence.
After as long again, the link uses another connection."""
HINTED_S: Final = 0.1
"""Seconds, plus one round trip, used instead if the peer has left this connection for a worse one,
or has replied on another one meanwhile."""
SUSPECT_S: Final = 1.5
"""Silence, in seconds, after which a path beside a doubtful relayed one is searched for."""
LAPSED_S: Final = 2.0
"""Seconds after the end of an exhausted circuit from which on its peer is in doubt. Relays end each
circuit after two minutes, and each doubt costs a message to all peers of both ends."""
UNKNOWN_RTT_S: Final = 0.3
"""Assumed round trip before the first pong, in seconds."""
LEGS: Final = 3
"""Connections that may carry one link, a count."""
REDUNDANT_S: Final = 15.0
"""After this many seconds, a second connection of the same path kind and medium is closed."""
SPARE_S: Final = 60.0
"""How long a direct connection must last, in seconds, before the relayed one beside it is
closed."""
LONG_S: Final = 0.1
"""Round trip, in seconds, from which on UDP carries a link rather than TCP (longpaths.py)."""
LONG_LOOK_S: Final = 1.0
LONG_RATE: Final = 1e6
"""Bytes per second over `LONG_LOOK_S` at which a long TCP path gets a UDP path beside it."""
LONG_AGAIN_S: Final = 300.0
"""Time between two attempts to get one, in seconds."""
STANDBY_S: Final = 10.0
"""Silence, in seconds, after which a connection that carries nothing is pinged."""
FRAME_OVERHEAD_BYTES: Final = 64
"""Assumed cost of a frame besides its bytes, so that empty frames are bounded too."""

# The timing of the lane's shell.
BATCH_BYTES: Final = 512 * KIB
SMALL_BATCH_BYTES: Final = 16 * KIB
"""Bytes that are encrypted ahead of the kernel, and that a token may have to wait behind."""
BATCH_S: Final = (0.005, 0.02)
"""A full batch that took less than the first, in seconds, doubles the next one; a batch that took
more than the second halves it."""
READ_BYTES: Final = 512 * KIB
SMALL_READ_BYTES: Final = 16 * KIB
TURN_S: Final = 0.01
"""A batch of frames that took longer than this, in seconds, makes the next read a small one."""
SEND_AHEAD_BYTES: Final = 512 * KIB
"""Bytes by which a stream's sender may run ahead of the wire."""
SMALL_PAYLOAD_BYTES: Final = 16 * KIB
"""Payloads up to this size are copied, so that they do not pin their receive buffer."""
GIVE_BACK_S: Final = 15.0
GIVE_BACK_BYTES: Final = 1 * MIB
"""Freed memory is returned to the operating system after a busy time, once fewer bytes than this
have passed in `GIVE_BACK_S` seconds."""
TICK_S: Final = 0.25
"""Time between two checks for quiet links, in seconds; well under `STALL_S`."""
HURRY_S: Final = 0.05
"""Time between two such checks while a link has frames in flight, in seconds."""
ALARM_S: Final = 0.005
"""How much later a call's timeout may be, in seconds, if another one came just before."""
COALESCE_S: Final = 100e-6
"""Frames queued within this time of a direct write, in seconds, wait for the writer and leave
together. A call does not wait if no other call is open."""
REDIAL_S: Final = 0.25
"""Time between two attempts to resume a link, in seconds."""
RESTORE_S: Final = 1.0
"""The least time that a lost link gets to find a connection again, in seconds."""
ROUND_S: Final = (3.0, 10.0)
"""How long one round of the search for a path delays the next, in seconds: during the first
`GRACE_S`, and later."""
PROBE_S: Final = 1.0
"""Time between two checks, in seconds, whether the peer that dialled still listens."""
HELLO_S: Final = 3.5
"""How long the hello of a first connection to a peer may take, in seconds. Other dials to that peer
wait for it."""
DUPLICATE_S: Final = 2.0
"""How long a dial that crossed the peer's own dial waits for that link, in seconds."""
STALL_S: Final = 0.5
"""A timer that is this late, in seconds, means that our own event loop stood still."""
ACCEPT_PAUSE_S: Final = 0.01
ACCEPT_BURST: Final = 16
"""Half-open connections, a count, above which accepts are `ACCEPT_PAUSE_S` seconds apart."""
REFUSALS_BURST: Final = 128
REFUSALS_PER_S: Final = 20.0
"""Connections closed as soon as they were accepted: a burst (a count) and a rate per second. Above
it, accepts are `ACCEPT_PAUSE_S` apart, and the kernel turns the others away."""
LINGER_S: Final = 0.25
"""How long a connection stays open, in seconds, for the peer to read the last frames."""
REFUSAL_S: Final = 1.0
"""How long a refusal may take to leave before its connection is closed, in seconds."""

HTTPS_PORT: Final = 443
"""The TCP port that nearly every network allows outbound."""
LOW_PORT: Final = 1024
"""Ports below this number belong to system services. Except for `HTTPS_PORT`, nothing is sent to
one on the word of a peer."""
RATE_KEYS: Final = 4096
"""Keys whose rate is remembered, a count (rates.py)."""

# Peers: bounds on input from peers that have not proven anything yet.
ADDRESS_LETTERS: Final = 400
CERTIFICATE_BYTES: Final = 4 * KIB
TLS_HANDSHAKE_BYTES: Final = 64 * KIB

# The dialer (ladder.py, climb.py).
STAGGER_S: Final = 0.25
"""Time between the dials to two addresses of a peer, in seconds (RFC 8305, section 8)."""
CLIMB_S: Final = 10.0
"""How long the dial to one address may take, in seconds."""
CLIMB_ADDRESSES: Final = 8
CLIMB_CIRCUITS: Final = 4
RELAYS_STAGGER_S: Final = 1.0
"""Seconds between attempts through two relays: a circuit takes several round trips to open, and a
relay lends little."""
OPENINGS_PER_RELAY: Final = 3
"""Circuits that this node opens at once through one relay, a count."""
CLIMB_OWN: Final = 3
"""Relays of this node that are tried even though the peer does not name them, a count."""
OWN_RELAYS_S: Final = 1.5
"""Delay before they are tried, in seconds, so that the addresses that the peer names come first."""
FOREIGN_S: Final = 15.0
"""Time between two checks, in seconds, whether the reservation at a libp2p relay still holds."""
FETCH_LOOK_S: Final = 0.1
"""Time between two checks, in seconds, whether a peer that a relay fetches for others is linked."""
BOTH_S: Final = 0.3
"""How long a relay's other IP version is waited for, in seconds, once one version has replied."""
FAMILY_S: Final = 60.0
"""Time between two tries of an IP version of a relay, in seconds."""
FIND_S: Final = 0.5
"""Time between two rounds of the search for a path of a link that has none, in seconds."""
PUNCH_PAUSES_S: Final = (4.0, 10.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Pauses after which a relayed link is punched for again, in seconds; the last one repeats. A
change of the network interrupts them."""
FUTILE_S: Final = 120.0
"""The shortest such pause, in seconds, if ordinary checks cannot succeed between the two
routers."""
WHERE: Final = (16, 0.5)
"""Questions about the address of another peer that are answered for one peer: burst and rate per
second."""
WHERE_S: Final = 2.0
"""How long the reply to such a question may take, in seconds."""
VOUCHERS: Final = 6
"""Linked peers that are asked such a question, a count."""
NETWORK_S: Final = 2.0
"""Time between two checks of this machine's own addresses, in seconds."""
SLEPT_S: Final = 5.0
"""A wall clock that is ahead of its expected time by this much, in seconds, means that this machine
slept."""
AIM_WINDOW_S: Final = 600.0
"""Seconds in which failed dials to one target count."""
AIM_MISSES: Final = 120
"""Failed dials in ten minutes to one target (`networks.targets`) where a peer has answered this
node, a count."""
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
"""How many failures a failed QUIC dial counts as."""
DATABASE_PAGE: Final = 4 * KIB
"""Page size of a database, in bytes."""
DATABASE_CACHE: Final = MIB
"""The most bytes of a database that are cached in memory."""
DATABASE_LOG: Final = MIB
"""Bytes in a database's log from which on they are moved into its file."""
DATABASE_BUSY_MS: Final = 2000
"""How long to wait for another process that holds the database, in milliseconds."""
