"""State machine of a TCP connection (RFC 9293, section 3.3.2), from the first SYN to the last ACK.

Create a `TcpConnection` and call `open(now)`. Send the segments in `out`. Call `receive(segment,
now)` for each segment that arrives, and `tick(now)` when the time `wake` is reached.
"""

import errno
from typing import Final

from .defaults import (
    DELAYED_ACK_MOST_S,
    DELAYED_ACK_S,
    FIN_WAIT_S,
    INFINITY,
    LEAST_MSS,
    QUICK_ACKS,
    SYN_ACK_RETRIES,
    SYN_RETRIES,
    SYN_TIMEOUT_S,
)
from .scoreboard import Scoreboard
from .segment import ControlSegment, TcpSegment, refusal
from .sender import HANDSHAKE, Sender

CLOSED: Final = 0
SYN_SENT: Final = 1
SYN_RECEIVED: Final = 2
ESTABLISHED: Final = 3
CLOSE_WAIT: Final = 4
FIN_WAIT_1: Final = 5
FIN_WAIT_2: Final = 6
CLOSING: Final = 7
LAST_ACK: Final = 8
TIME_WAIT: Final = 9

_TIMESTAMPS: Final = 12  # bytes of an option that the MSS does not count (RFC 6691)
_CHALLENGE_S: Final = 0.5  # minimum between two replies to invalid segments (RFC 5961)


class TcpConnection(Sender):
    """One end of a TCP connection. A method that takes `now` may append segments to `out` and lower
    `wake`.
    """

    __slots__ = (
        "_challenged_at",
        "_full",
        "_keepalive",
        "_keepalives",
        "_offer",
        "_passive",
        "_tries",
        "eof",
        "read_shut",
        "state",
    )

    def __init__(self, isn: int, offer: int, now: float, receive_limit: int = 0) -> None:
        """Create one end of a connection. `isn` is the initial sequence number, `offer` the MSS
        option of this side's SYN in bytes, and `receive_limit` a fixed receive buffer in bytes (0
        lets it grow).
        """
        super().__init__(isn, offer - _TIMESTAMPS, now, receive_limit)
        self._offer = offer
        self._full = LEAST_MSS  # apparent size in bytes of the peer's full segments
        self._passive = False  # whether the peer opened the connection
        self._tries = 0  # number of retransmitted SYNs
        self._challenged_at = -1.0
        self._keepalive = (0.0, 0.0, 0)  # idle time (s), interval (s), number of probes
        self._keepalives = 0  # number of unanswered keepalive probes
        self.state = CLOSED
        self.eof = False  # whether all data up to the peer's FIN has arrived
        self.read_shut = False  # whether the program reads no more

    # Opening.

    def open(self, now: float) -> None:
        """Send a SYN."""
        self.state = SYN_SENT
        self.nxt = self.una + 1
        self._send_syn(now)

    def accept(self, syn: TcpSegment, now: float) -> None:
        """Reply to a SYN that arrived at a listener."""
        self._passive = True
        self.nxt = self.una + 1
        self._meet(syn, now)

    def _meet(self, syn: TcpSegment, now: float) -> None:
        """Reply to the peer's SYN with a SYN and ACK."""
        self.state = SYN_RECEIVED
        self._learn(syn)
        self._tries = 0
        self._send_syn(now)

    def _learn(self, syn: TcpSegment) -> None:
        """Store the parameters of the peer's SYN: sequence number, timestamp, MSS and window."""
        self.inbox.start(syn.seq + 1)
        self._last_ack = syn.seq + 1
        self.recent = syn.stamp
        self.mss = min(self._offer, syn.mss or LEAST_MSS) - _TIMESTAMPS
        self.piece = self.mss
        self._full = min(LEAST_MSS, self.mss)
        self._window_changed(syn.window)

    def _send_syn(self, now: float) -> None:
        """Send this side's SYN, and set the timer for its retransmission."""
        window = self.inbox.offer_first()
        answers = self.state == SYN_RECEIVED
        self.out.append(
            ControlSegment(
                self.una,
                self.inbox.next,
                window,
                stamp=now,
                echo=self.recent,
                syn=True,
                ack=answers,
                mss=self._offer,
            )
        )
        self._set(HANDSHAKE, now + SYN_TIMEOUT_S * 2**self._tries)

    def _shake_again(self, now: float) -> None:
        """Retransmit the SYN, or give up after the maximum number of attempts."""
        self._tries += 1
        if self._tries > (SYN_ACK_RETRIES if self._passive else SYN_RETRIES):
            self.fail(errno.ETIMEDOUT)
        else:
            self._send_syn(now)

    def _receive_early(self, segment: TcpSegment, now: float) -> bool:
        """Process a segment before the connection is established. Return whether the connection is
        now established.
        """
        if segment.ack and not self.una < segment.acked <= self.nxt:
            answer = refusal(segment)
            if answer is not None:
                self.out.append(answer)
            return False
        if segment.rst:
            self._refused(segment)
            return False
        if self.state == SYN_SENT:
            return self._receive_first(segment, now)
        if segment.syn and segment.seq != self.inbox.next - 1:
            return False
        if not segment.ack:
            if segment.syn:
                self._send_syn(now)
            return False
        self._establish(segment, now)
        if segment.syn:  # simultaneous open: the peer may not have an ACK of its SYN yet
            self.ack_now = True
        return True

    def _refused(self, segment: TcpSegment) -> None:
        """Handle a RST before the connection is established."""
        if self.state == SYN_SENT:
            if segment.ack:
                self.fail(errno.ECONNREFUSED)
        elif self.inbox.fits(segment):
            self.fail(0 if self._passive else errno.ECONNREFUSED)

    def _receive_first(self, segment: TcpSegment, now: float) -> bool:
        """Process the reply to this side's SYN. Return whether the connection is now
        established.
        """
        if not segment.syn:
            return False
        if not segment.ack:  # simultaneous open
            self._meet(segment, now)
            return False
        self._learn(segment)
        self._establish(segment, now)
        if self.interactive:
            # As in Linux (tcp_rcv_synsent_state_process), the ACK waits for the first data. Data
            # that follows soon also ends the quick acknowledgements.
            self.interactive = False
            self.data_at = now
            self.ack_at = now + DELAYED_ACK_MOST_S
            self.wake = min(self.wake, self.ack_at)
        else:
            self.ack_now = True
        return True

    def _establish(self, segment: TcpSegment, now: float) -> None:
        """Complete the handshake with the segment that acknowledges this side's SYN."""
        self.state = ESTABLISHED
        self._disarm()
        self.una = segment.acked
        self._small_end = self._recover = self.una
        if segment.echo >= 0:
            self.round_trip.sample(now - segment.echo)
        self._window_changed(segment.window)
        self._schedule_life(now)
        if self.fin_wanted:
            self.state = FIN_WAIT_1

    # Receiving.

    def receive(self, segment: TcpSegment, now: float) -> None:
        """Process a segment of this connection."""
        state = self.state
        if state == CLOSED:
            return
        if state <= SYN_RECEIVED:
            if not self._receive_early(segment, now):
                return
            if segment.syn:
                self.flush(now)
                return
        elif (
            segment.__class__ is not TcpSegment
            or not self._last_ack <= segment.seq <= self.inbox.edge
            or segment.acked > self.nxt
        ) and not self._acceptable(segment, now):
            self.flush(now)
            return
        self.heard_at = now
        if segment.seq <= self._last_ack and segment.stamp > self.recent:
            self.recent = segment.stamp  # RFC 7323, section 4.3
        self._probes = 0
        if segment.acked >= self.una:
            self.acknowledged(segment, now)
            if self.fin_sent and self.una == self.nxt:
                self._fin_acknowledged(now)
        if segment.data or segment.fin:
            self._take(segment, now)
        self.flush(now)

    def _acceptable(self, segment: TcpSegment, now: float) -> bool:
        """Return whether a segment passes the checks of RFC 9293, section 3.10.7.4, and of RFC
        5961. Reply to a segment that fails them, where required.
        """
        inbox = self.inbox
        if segment.seq > inbox.edge or segment.end < self._last_ack:
            if not segment.rst and (segment.data or now - self._challenged_at >= _CHALLENGE_S):
                self._challenged_at = now
                self.ack_now = True
            return False
        if segment.rst:
            if segment.seq == inbox.next:
                self.fail(errno.EPIPE if self.state == CLOSE_WAIT else errno.ECONNRESET)
            else:
                self.ack_now = True
            return False
        if segment.syn or segment.acked > self.nxt:
            self.ack_now = True
            return False
        return segment.ack

    def _take(self, segment: TcpSegment, now: float) -> None:
        """Process the data and the FIN of a segment."""
        inbox, state = self.inbox, self.state
        new = segment.end > inbox.next
        if state not in (ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2):
            self.ack_now = True  # the peer has retransmitted its FIN
            return
        size = len(segment.data)
        if now - self.data_at > self.round_trip.rto:  # after a pause, as at the start
            self._quick = QUICK_ACKS  # if replies do not carry the ACKs, with or without a pause
        self.data_at = now
        if new and size and self.read_shut and self.fin_wanted:
            self.abort(now)  # the data would never be read (RFC 9293, section 3.6.1)
            self.error = errno.ECONNRESET
            return
        in_order = segment.seq <= inbox.next
        if not new or (size and segment.seq >= inbox.edge):
            self.ack_now = True
            return
        torn = inbox.torn
        fin = inbox.take(segment)
        if size >= self._full:
            self._full = min(size, self.mss)
        if fin:
            self._fin_received(now)
        elif not in_order or torn:
            self.ack_now = True
        else:
            self._schedule_ack(now)

    def _schedule_ack(self, now: float) -> None:
        """Request an acknowledgement of data in order: at once or delayed."""
        if self._quick and not self.interactive:
            self._quick -= 1
            self.ack_now = True
        elif self.inbox.next - self._last_ack > self._full:
            self.ack_now = True
        elif self.ack_at == INFINITY:
            self.ack_at = now + DELAYED_ACK_S
            if self.ack_at < self.wake:
                self.wake = self.ack_at

    def _fin_received(self, now: float) -> None:
        """Change the state, because all data up to the peer's FIN has arrived."""
        self.eof = self.ack_now = True
        if self.state == ESTABLISHED:
            self.state = CLOSE_WAIT
        elif self.state == FIN_WAIT_1:
            self.state = CLOSING
        else:
            self._wait_out()

    def _fin_acknowledged(self, now: float) -> None:
        """Change the state, because the peer has acknowledged this side's FIN."""
        if self.state == FIN_WAIT_1:
            self.state = FIN_WAIT_2
            self._schedule_life(now)
        elif self.state == CLOSING:
            self._wait_out()
        elif self.state == LAST_ACK:
            self._end()

    def _wait_out(self) -> None:
        """End the connection in state TIME-WAIT, because both sides have sent FIN. The stack then
        replies to late segments.
        """
        self._end()
        self.state = TIME_WAIT

    # The program's side.

    @property
    def readable(self) -> bool:
        """Whether `read` would return at once."""
        return bool(
            self.inbox.size or self.eof or self.error or self.read_shut or self.state == CLOSED
        )

    def read(self, size: int, now: float, peek: bool = False) -> bytes:
        """Return up to `size` bytes that have arrived. If `peek` is True, leave them in the
        buffer.
        """
        inbox = self.inbox
        if peek:
            return inbox.peek(size)
        data = inbox.read(size)
        inbox.adjust(now, self.round_trip.smooth)
        if self.state in (ESTABLISHED, FIN_WAIT_1, FIN_WAIT_2):
            small_waits = self.ack_at < INFINITY and not inbox.size and not self.interactive
            if inbox.could_offer(self._full) or (
                small_waits and inbox.next - self._last_ack < self._full
            ):
                self.ack_now = True
                self.flush(now)
        return data

    def may_write(self) -> bool:
        """Return whether to wake a waiting writer: a third of the buffer is free, and little data
        is unsent (Linux: sk_stream_is_writeable and TCP_NOTSENT_LOWAT).
        """
        queued = self.queued
        if self.unsent_limit and 2 * self.outbox.size >= self.unsent_limit:
            return False
        return self.limit - queued >= queued // 2

    def write(self, data: bytes, now: float) -> None:
        """Queue and send these bytes. The caller checks that there is space for them."""
        self.outbox.add(data, self.piece)
        self.flush(now)

    def set_quick(self, quick: bool, now: float) -> None:
        """Acknowledge at once (TCP_QUICKACK), or together with data that soon follows. Either lasts
        until the connection itself decides otherwise.
        """
        self.interactive = not quick
        if quick and self.ack_at < INFINITY:
            self.ack_now = True
            self.flush(now)

    def shutdown(self, now: float) -> None:
        """Send FIN after the queued data, because the program will write no more."""
        if self.fin_wanted:
            return
        self.fin_wanted = True
        if self.state == ESTABLISHED:
            self.state = FIN_WAIT_1
        elif self.state == CLOSE_WAIT:
            self.state = LAST_ACK
        if self.state > SYN_RECEIVED:
            self.flush(now)

    def close(self, now: float) -> None:
        """Close the connection for the program. If data is unread, reset the connection (RFC 2525,
        section 2.17).
        """
        self.orphan = self.read_shut = True
        if self.state == SYN_SENT:
            self._end()
        elif self.inbox.size and self.state != CLOSED:
            self.abort(now)
        elif self.state not in (CLOSED, TIME_WAIT):
            self.inbox.drop()
            self.shutdown(now)
            self._schedule_life(now)

    def abort(self, now: float) -> None:
        """Send a reset, and end the connection."""
        if self.state > SYN_SENT and self.state != TIME_WAIT:
            self.out.append(
                ControlSegment(self.nxt, self.inbox.next, 0, rst=True, ack=True, stamp=now)
            )
        self.fail(0)

    def fail(self, number: int) -> None:
        """End the connection with an error. The program will get the errno `number`; 0 means no
        error.
        """
        self.error = number
        self._end()

    def _end(self) -> None:
        """Set the state to CLOSED, and delete the data and timers."""
        self.state = CLOSED
        self.outbox.drop()
        self.board = Scoreboard()
        self._disarm()
        self.ack_at = self.life_at = INFINITY
        self.fin_wanted = self.fin_sent = True

    # Keepalive and the timeout of FIN-WAIT-2.

    def keep_alive(self, idle: float, interval: float, probes: int, now: float) -> None:
        """Probe the peer after it has been silent for `idle` seconds, up to `probes` times, every
        `interval` seconds. An `idle` of 0 turns keepalive off.
        """
        self._keepalive = idle, interval, probes
        self._schedule_life(now)

    def _schedule_life(self, now: float) -> None:
        """Set the timer for keepalive or, for a closed connection, for the end of FIN-WAIT-2."""
        if self.orphan and self.state == FIN_WAIT_2:
            self.life_at = now + FIN_WAIT_S
        elif self._keepalive[0] and self.state >= ESTABLISHED:
            self.life_at = self.heard_at + self._keepalive[0]
        else:
            self.life_at = INFINITY
        if self.life_at < self.wake:
            self.wake = self.life_at

    def _expired(self, now: float) -> None:
        """Handle the expiry of the timer for keepalive or FIN-WAIT-2: send a keepalive probe, or
        end the connection.
        """
        idle, interval, probes = self._keepalive
        if self.orphan and self.state == FIN_WAIT_2:
            self._end()
        elif now - self.heard_at < idle:
            self._keepalives = 0
            self._schedule_life(now)
        elif self._keepalives >= probes:
            self.fail(errno.ETIMEDOUT)
        else:
            self._keepalives += 1
            self._ask(now)
            self.life_at = now + interval
