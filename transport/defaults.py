"""All constants of the transport, with their units."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames (docs/spec/lane.md). Part of the protocol: both sides must agree.
ALPN: Final = b"shoal/1"
TIE: Final = b"shoal-tie/"
"""Prefix of a second ALPN name that clients offer and servers never select. It is followed by 16
hex digits. If both sides began the TLS handshake as clients, these digits decide which side stays
the client."""
TIE_DIGITS: Final = 16
PROTOCOL_VERSIONS: Final = (1, 1)
"""The lowest and the highest version of the lane protocol that this code supports."""
FRAME_PAYLOAD_BYTES: Final = 64 * KIB
FRAME_HEAD_BYTES: Final = 32 * KIB
METHOD_BYTES: Final = 64
CODE_BYTES: Final = 32
HELLO_BYTES: Final = 4 * KIB
INCARNATION_BYTES: Final = 16

# Default values of `Limits`, which documents each of them (bytes, counts, seconds).
MESSAGE_BYTES: Final = 16 * MIB
STREAM_WINDOW_BYTES: Final = 1 * MIB
LARGEST_STREAM_WINDOW_BYTES: Final = 4 * MIB
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
"""Sizes of the networks that count as one source (`networks.networks`), each as (prefix length in
bits, multiple of the smallest network's bound). The prefix lengths are whole bytes."""
TARGETS_FOUR: Final = ((32, 1), (24, 16))
TARGETS_SIX: Final = ((64, 1), (56, 2), (48, 4))
"""Sizes of the networks that count as one target (`networks.targets`), in the form of
`NETWORKS_FOUR`."""
LARGEST_SHARE: Final = 1 / 2
"""Largest part of the bound on all sources that one of the larger networks may use."""
KEPT_SHARE: Final = 1 / 4
"""Part of the bound on connections that is reserved for networks not seen lately."""
KEPT_S: Final = 1.0
"""Number of arrivals that are reserved for networks not seen lately, given as a time in seconds: as
many as the total rate allows in this time. At most the part `KEPT_SHARE` of the burst is reserved.
"""
LATELY_S: Final = 30.0
"""Seconds after its last connection until a network counts as not seen lately again. This is the
value for the smallest networks; for a larger network it is divided by the network's multiple.
"""
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 2.5
SILENT_S: Final = 3.5
QUIET_S: Final = 4.5
GRACE_S: Final = 20.0
HOLD_S: Final = 120.0

# The timing of the lane's protocol code, which does no I/O.
REORDERED_IDS: Final = 16 * KIB
"""Largest distance of a received id from the lowest id that has not arrived yet, a count. A
receiver treats a larger distance as a protocol error."""
ACK_FRAMES: Final = 64
ACK_BYTES: Final = 1 * MIB
"""After this many frames or bytes, an acknowledgement is sent in a frame of its own."""
PATIENCE: Final = 1.1
"""The side that was dialled pings after `IDLE_S` times this factor, so that the other side pings
first. TCP repeats a lost ping after 0.2 s and 0.7 s, which is before `SILENT_S` ends."""
PROBED_BYTES: Final = 4 * KIB
"""The queueing delay is not measured while less bulk than this is in flight, in bytes, because so
few bytes do not fill a buffer."""
LATER_S: Final = 2.0
"""Longest time, in seconds, that a post marked as not urgent waits for another frame, in order to
leave together with it.
"""
PING_S: Final = 30.0
"""The longest time between measurements of a busy link's round trip, in seconds."""
EASE_S: Final = 1.0
"""A tick that an arriving ping or pong makes needless is put off if the next one is due this much
later, in seconds. A smaller gain would not be worth the new timer.
"""
DOUBT_S: Final = 0.5
DOUBT_RTTS: Final = 3
"""A connection with frames in flight is pinged after a silence of `DOUBT_S` seconds plus
`DOUBT_RTTS` round trips. If no pong arrives for as long again, the link uses another connection."""
HINTED_S: Final = 0.1
"""Shorter time, in seconds, that replaces `DOUBT_S` (plus one round trip) if there is other
evidence that the connection is dead: the peer has switched to a worse connection, or has replied on
another connection in the meantime.
"""
SUSPECT_S: Final = 1.5
"""Silence, in seconds, after which a second path is searched for if the present one is relayed and
has an overdue pong."""
LAPSED_S: Final = 2.0
"""Seconds after the end of an exhausted circuit until its peer counts as *in doubt*: it may be
dead. The delay is there because relays end each circuit after two minutes, and each doubt costs a
message to all peers of both ends."""
UNKNOWN_RTT_S: Final = 0.3
"""Assumed round trip before the first pong, in seconds."""
LEGS: Final = 3
"""Largest number of connections of one link."""
REDUNDANT_S: Final = 15.0
"""After this many seconds, a second connection of the same path kind and medium is closed."""
SPARE_S: Final = 60.0
"""How long a better connection must have existed, in seconds, before a relayed connection of the
same link is closed."""
LONG_S: Final = 0.1
"""A link whose round trip is at least this long, in seconds, prefers UDP over TCP
(longpaths.py)."""
LONG_LOOK_S: Final = 1.0
LONG_RATE: Final = 1e6
"""If a link over a long TCP path carries at least this many bytes per second, measured over
`LONG_LOOK_S` seconds or longer, it also gets a UDP path."""
LONG_AGAIN_S: Final = 300.0
"""Time between two attempts to add a UDP path to a link with a long TCP path, in seconds."""
STANDBY_S: Final = 10.0
"""Silence, in seconds, after which a connection that the link does not use is pinged."""
FRAME_OVERHEAD_BYTES: Final = 64
"""Assumed memory of a frame in addition to its contents, in bytes, so that empty frames are bounded
too."""

# The timing of the lane's I/O.
BATCH_BYTES: Final = 512 * KIB
SMALL_BATCH_BYTES: Final = 16 * KIB
"""The largest and the smallest batch, in bytes: what is encrypted at once before the kernel accepts
it. An urgent frame may have to wait for one batch."""
BATCH_S: Final = (0.005, 0.02)
"""Two times, in seconds. If a full batch took less than the first, the next batch is twice as
large. If it took more than the second, the next one is half as large."""
READ_BYTES: Final = 512 * KIB
SMALL_READ_BYTES: Final = 16 * KIB
TURN_S: Final = 0.01
"""If handling the frames of one read took longer than this, in seconds, the next read is small."""
SEND_AHEAD_BYTES: Final = 512 * KIB
"""Unsent bytes of a stream above which its writer waits."""
SMALL_PAYLOAD_BYTES: Final = 16 * KIB
"""Payloads up to this size, in bytes, are copied, so that they do not keep a whole receive buffer
in memory."""
GIVE_BACK_S: Final = 15.0
GIVE_BACK_BYTES: Final = 1 * MIB
"""After a busy time, freed memory is returned to the operating system once fewer than
`GIVE_BACK_BYTES` bytes have been transferred in `GIVE_BACK_S` seconds."""
TICK_S: Final = 0.25
"""Time between two checks of a link's timers, in seconds. It must be well below `STALL_S`."""
GRACE_LOOK_S: Final = 1.0
"""Longest time between two checks whether a link without a path must end, in seconds. A stall of
the event loop that begins and ends between two checks counts as silence of the peer."""
HURRY_S: Final = 0.05
"""Time between two checks of the timers of a link that has frames in flight, in seconds."""
ALARM_S: Final = 0.005
"""How much later than requested a call may time out, in seconds, if another call timed out just
before."""
PATIENCE_S: Final = 0.02
"""How long a call that no user waits for, or its reply, may wait to leave with other frames, in
seconds. It is shorter than the 40 ms after which TCP acknowledges by a packet of its own."""
HASTE_S: Final = 0.002
"""The same for a call that a user may wait for, in seconds: it leaves with other frames of the same
moment."""
COALESCE_S: Final = 100e-6
"""Frames that are queued within this time after a direct write, in seconds, wait for the writer
task and leave together. A call does not wait if no other call is open."""
REDIAL_S: Final = 0.25
"""Time between two attempts to resume a link, in seconds."""
RESTORE_S: Final = 1.0
"""Shortest time that a link without a connection has to find a new one, in seconds."""
ROUND_S: Final = (3.0, 10.0)
"""How long one round of the search for a path may delay the next, in seconds: (during the first
`GRACE_S` seconds of the search, later)."""
PROBE_S: Final = 1.0
"""Time between two checks whether the peer that dialled this link still listens, in seconds."""
HELLO_S: Final = 3.5
"""How long the hello of the first connection to a peer may take, in seconds. Other dials to that
peer wait until it is done."""
DUPLICATE_S: Final = 2.0
"""How long a dial that crossed a dial by the peer waits for the link of the peer's dial, in
seconds."""
STALL_S: Final = 0.5
"""A timer that fires this late, in seconds, shows that this node's event loop was blocked."""
ACCEPT_PAUSE_S: Final = 0.01
ACCEPT_BURST: Final = 16
"""Number of half-open connections above which the node waits `ACCEPT_PAUSE_S` seconds between
accepting two connections."""
REFUSALS_BURST: Final = 128
REFUSALS_PER_S: Final = 20.0
"""Limit on connections that are accepted and closed at once: a burst (a count) and a rate per
second. Above it, the node waits `ACCEPT_PAUSE_S` seconds between accepting two connections, and the
kernel refuses those that do not fit into its queue."""
LINGER_S: Final = 0.25
"""How long a connection stays open at its end, in seconds, so that the peer can read the last
frames."""
REFUSAL_S: Final = 1.0
"""How long sending a refusal may take, in seconds, before its connection is closed."""

HTTPS_PORT: Final = 443
"""The TCP port to which nearly every network allows outgoing connections."""
LOW_PORT: Final = 1024
"""Ports below this number belong to system services. If only a peer has named such a port, nothing
is sent to it, except to `HTTPS_PORT`."""
RATE_KEYS: Final = 4096
"""Number of keys (peers or networks) for which a rate limiter remembers a rate (rates.py)."""

# Bounds on input from peers that are not authenticated yet.
ADDRESS_LETTERS: Final = 400
CERTIFICATE_BYTES: Final = 4 * KIB
CERTIFICATES: Final = 256
"""Number of valid certificates that a process remembers, so that they are not checked again."""
TLS_HANDSHAKE_BYTES: Final = 64 * KIB

# The dialer (dial/).
STAGGER_S: Final = 0.25
"""Time between the dials to two addresses of a peer, in seconds (RFC 8305, section 8)."""
ATTEMPT_S: Final = 10.0
"""How long the dial to one address may take, in seconds."""
ATTEMPT_ADDRESSES: Final = 8
"""Largest number of direct addresses of a peer that one connection attempt dials."""
ATTEMPT_CIRCUITS: Final = 4
"""Largest number of relays named by the peer that one connection attempt uses."""
RELAYS_STAGGER_S: Final = 1.0
"""Time between the attempts through two relays, in seconds. It is long because a circuit takes
several round trips to open, and because the capacity of relays is scarce."""
OPENINGS_PER_RELAY: Final = 3
"""Largest number of circuits that this node opens at the same time through one relay."""
ATTEMPT_OWN: Final = 3
"""Number of this node's own relays that are tried even though the peer does not name them."""
OWN_RELAYS_S: Final = 1.5
"""Delay before this node's own relays are tried, in seconds, so that the addresses that the peer
names come first.
"""
FOREIGN_S: Final = 15.0
"""Time between two checks whether the reservation at a libp2p relay is still valid, in seconds."""
FETCH_LOOK_S: Final = 0.1
"""Time between two checks whether a peer that this node, as a relay, dials for another peer is
linked, in seconds."""
BOTH_S: Final = 0.3
"""Once a relay has replied over one IP version: how long to wait for its reply over the other one,
in seconds."""
FAMILY_S: Final = 60.0
"""Time between two attempts to reach a relay over an IP version that failed, in seconds."""
FIND_S: Final = 0.5
"""Time between two rounds of the search for a path, for a link that has none, in seconds."""
PUNCH_PAUSES_S: Final = (4.0, 10.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Pauses between two attempts at hole punching for a relayed link, in seconds. The last one
repeats. A change of the network ends a pause."""
FUTILE_S: Final = 120.0
"""Shortest pause between two attempts at hole punching, in seconds, if the two NATs are of kinds
between which ordinary checks cannot succeed.
"""
WHERE: Final = (16, 0.5)
"""Limit on the questions "at which address do you see that peer?" from one peer that are answered:
(burst, rate per second).
"""
WHERE_S: Final = 2.0
"""How long the reply to a question about a peer's address may take, in seconds."""
VOUCHERS: Final = 6
"""Number of linked peers that are asked for the address of another peer."""
NETWORK_S: Final = 2.0
"""Time between two checks of this machine's own addresses, in seconds."""
SLEPT_S: Final = 5.0
"""If a clock is ahead of its expected time by this much, in seconds, this machine has probably
slept."""
AIM_WINDOW_S: Final = 600.0
"""Seconds in which failed dials to one target count."""
AIM_MISSES: Final = 120
"""Failed dials in ten minutes that are allowed to one target where a peer has answered this node, a
count. A target is an address or a network (`networks.targets`)."""
AIM_STRANGE: Final = 6
"""Failed TCP dials in ten minutes that are allowed to a target where no peer has answered, a
count."""
AIM_STRANGE_UDP: Final = (1, 120.0)
"""Failed QUIC dials that are allowed to a target where no peer has answered: (count, time window in
seconds). The count is small because one dial sends up to 9 kB.
"""
AIM_NEAR: Final = 16
"""Number of private addresses where no peer has answered that this node may dial in ten minutes."""
AIM_TARGETS: Final = 16 * KIB
"""Number of targets with recent failures that are remembered. Above this number, no new target is
dialled."""
AIM_KNOWN: Final = 4 * KIB
"""Number of targets where a peer has answered that are remembered."""
AIM_UDP_COST: Final = 4
"""Weight of a failed QUIC dial, as a number of failed TCP dials."""
DATABASE_PAGE: Final = 4 * KIB
"""Page size of a database, in bytes."""
DATABASE_CACHE: Final = MIB
"""The most bytes of a database that are cached in memory."""
DATABASE_LOG: Final = MIB
"""Once a database's write-ahead log has this size, in bytes, it is copied into the database
file."""
DATABASE_BUSY_MS: Final = 2000
"""How long to wait for another process that has locked the database, in milliseconds."""
