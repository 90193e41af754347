"""Sending half of a connection: transmission, retransmission and timers."""

import errno
from typing import Final

from .defaults import (
    DELAYED_ACK_S,
    GIVE_UP_S,
    INFINITY,
    LEAST_MSS,
    ORPHAN_RETRIES,
    PROBE_LEAST_S,
    QUICK_ACKS,
    RTO_MAX_S,
    RTO_MIN_S,
    RTO_RETRIES,
    SEND_BUFFER_BYTES,
    SEND_BUFFER_MAX_BYTES,
)
from .inbox import Inbox
from .outbox import SendBuffer
from .recovery import LOSS, OPEN, RECOVERY, Recovery
from .rtt import RoundTrip
from .scoreboard import Flight
from .segment import BLOCK_BYTES, NO_STAMP, SACK_BYTES, ControlSegment, TcpSegment

# Purposes of the retransmission timer.
IDLE: Final = 0
TIMEOUT: Final = 1
TAIL_PROBE: Final = 2
REORDERING: Final = 3
WINDOW_PROBE: Final = 4
HANDSHAKE: Final = 5


class Sender(Recovery):
    """Base class of a connection, with everything except its states. It appends the segments to
    send to `out`.

    The caller must call `tick` at the time `wake`; an earlier call does no harm. Times are seconds.
    """

    __slots__ = (
        "_last_ack",
        "_limited",
        "_lost_since",
        "_most_out",
        "_probes",
        "_quick",
        "_sent_at",
        "_small_end",
        "_usage_end",
        "ack_at",
        "ack_now",
        "backoff",
        "data_at",
        "error",
        "fin_sent",
        "fin_wanted",
        "heard_at",
        "inbox",
        "interactive",
        "life_at",
        "mss",
        "no_delay",
        "orphan",
        "out",
        "outbox",
        "peer_window",
        "peer_window_most",
        "piece",
        "probed",
        "recent",
        "round_trip",
        "send_limit",
        "timer",
        "timer_at",
        "unsent_limit",
        "wake",
    )

    def __init__(self, isn: int, mss: int, now: float, receive_limit: int = 0) -> None:
        super().__init__(isn)
        self.mss = mss  # maximum payload of a segment in bytes
        self.piece = mss  # `mss`, but at most half of the peer's largest window so far
        self.peer_window = self.peer_window_most = 0
        self.inbox = Inbox(receive_limit)
        self.outbox = SendBuffer()
        self.round_trip = RoundTrip()
        self.out: list[TcpSegment] = []
        self.error = 0  # errno that no call has raised yet, or 0
        self.orphan = False  # whether the program has closed the connection
        self.no_delay = False
        self.send_limit = 0  # bytes, from SO_SNDBUF; 0: automatic
        self.unsent_limit = 0  # bytes, from TCP_NOTSENT_LOWAT; 0: no limit
        self.fin_wanted = self.fin_sent = False
        self.backoff = 0  # number of consecutive timeouts
        self.probed = False  # whether a tail loss probe is in flight
        self._probes = 0  # number of unanswered probes of a closed window
        # Use of the congestion window in the last round trip (RFC 7661, as in Linux).
        self._limited = False  # whether the window stopped the sender
        self._most_out = 0  # maximum number of segments in flight
        self._usage_end = isn
        self._lost_since = 0.0
        self._small_end = isn  # end of the last segment that was not full (for Nagle's algorithm)
        self._sent_at = now
        # Acknowledging.
        self.recent = NO_STAMP  # timestamp of the peer to echo
        self._last_ack = 0  # last sequence number acknowledged to the peer
        self._quick = QUICK_ACKS
        self.interactive = False  # whether data soon follows what arrives, and carries the ACK
        self.ack_now = False
        self.ack_at = INFINITY
        # Timers.
        self.timer = IDLE
        self.timer_at = INFINITY
        self.life_at = INFINITY
        self.heard_at = now
        self.data_at = -INFINITY  # time at which the peer's last bytes arrived
        self.wake = INFINITY

    # Sending.

    def flush(self, now: float) -> None:
        """Send everything that may be sent now: lost segments, new data, and a due
        acknowledgement.
        """
        board = self.board
        if self.phase != OPEN:
            lost = board.next_lost()
            while lost is not None and board.pipe + 1 <= self.cubic.window:
                self._send_again(lost, now)
                lost = board.next_lost()
        if self.outbox.size or (self.fin_wanted and not self.fin_sent):
            self._send_new(now)
        if self.ack_now:
            self._emit(self.nxt, b"", False, now)

    def _send_new(self, now: float) -> None:
        """Send new data, as far as the windows and Nagle's algorithm permit."""
        outbox, board, cubic = self.outbox, self.board, self.cubic
        silent = now - self._sent_at
        if not board and silent > self.round_trip.rto:
            cubic.after_pause(silent, self.round_trip.rto)
        edge = self.una + self.peer_window
        piece, window = self._most(self.piece), cubic.window
        limited = False
        while (left := outbox.size) != 0:
            size = piece if left > piece else left
            if self.nxt + size > edge or (size < piece and self._must_wait()):
                break
            if board.pipe + 1 > window:
                limited = True
                break
            data = outbox.cut(size)
            self._send(data, self.fin_wanted and left == size, now)
        else:
            # A FIN without data ignores the congestion window.
            if self.fin_wanted and not self.fin_sent and self.nxt < edge:
                self._send(b"", True, now)
        out = len(board)
        if limited or self.una >= self._usage_end or (not self._limited and out > self._most_out):
            self._limited = limited
            self._most_out = out
            self._usage_end = self.nxt
        if not out and self.timer == IDLE:
            self._arm(now)

    def _most(self, piece: int) -> int:
        """Return the payload in bytes that fits into one segment of up to `piece` bytes. SACK
        blocks take part of the space.
        """
        sack = self.inbox.sack
        return min(piece, self.mss - SACK_BYTES - BLOCK_BYTES * len(sack)) if sack else piece

    def _must_wait(self) -> bool:
        """Return whether Nagle's algorithm delays a segment that is not full. In Minshall's
        variant, one such segment may be in flight.
        """
        return not (self.no_delay or self.fin_wanted) and self._small_end > self.una

    def _send(self, data: bytes, fin: bool, now: float) -> None:
        """Send new data as one segment, with FIN if `fin` is True."""
        seq = self.nxt
        end = self.nxt = seq + len(data) + fin
        self.board.add(Flight(seq, end, data, fin, now, False))
        if len(data) < self._most(self.piece):
            self._small_end = end
        if now - self.data_at < DELAYED_ACK_S:
            self.interactive = True
        if fin:
            self.fin_sent = True
        self._emit(seq, data, fin, now)
        self._sent_at = now
        if self.phase == RECOVERY:
            self._prr_out += 1
        if self.timer == IDLE or self.timer == TAIL_PROBE:
            self._arm(now)

    def _send_again(self, flight: Flight, now: float) -> None:
        """Retransmit a segment, in several parts if the MSS has shrunk."""
        board = self.board
        board.replace(flight)
        for twin in flight.split(self._most(self.mss), now):
            board.add(twin)
            self._emit(twin.seq, twin.data, twin.fin, now)
        if self._undo_stamp == INFINITY:
            self._undo_stamp = now
        if self.phase == RECOVERY:
            self._prr_out += 1
        if self.timer == IDLE:
            self._arm(now)

    def _emit(self, seq: int, data: bytes, fin: bool, now: float) -> None:
        """Append a segment with these bytes to `out`. It acknowledges all data that has arrived."""
        inbox = self.inbox
        sack = inbox.sack if len(data) <= self._most(self.mss) else ()
        segment: TcpSegment
        if fin:
            segment = ControlSegment(
                seq,
                inbox.next,
                inbox.window(),
                data,
                sack,
                now,
                self.recent,
                ack=True,
                fin=True,
            )
        else:
            segment = TcpSegment(seq, inbox.next, inbox.window(), data, sack, now, self.recent)
        self.out.append(segment)
        self._last_ack = inbox.next
        self.ack_now = False
        self.ack_at = INFINITY

    # Acknowledgements.

    def acknowledged(self, segment: TcpSegment, now: float) -> None:
        """Process the acknowledgement and the window of a segment from the peer."""
        acked, echo, board = segment.acked, segment.echo, self.board
        delivered = 0
        if acked > self.una:
            delivered = board.acknowledge(self.una, acked, self.round_trip.least, now)
            self.una = acked
            self.backoff = 0
            self.probed = False
            if echo >= 0:
                self.round_trip.sample(now - echo)
                cubic = self.cubic
                if cubic.window < cubic.ssthresh:
                    cubic.watch(now - echo, self.round_trip.least, acked, self.nxt)
                if echo < self._undo_stamp < INFINITY:
                    self._undo_losses()
        if segment.sack:
            delivered += board.sack(segment.sack, self.una, self.round_trip.least, now)
        window = segment.window
        if window != self.peer_window:
            self._window_changed(window)
        if board.sacked or self.phase != OPEN:
            self._detect(delivered, now)
        if delivered:
            cubic = self.cubic
            if self.phase != RECOVERY and (
                self._limited or cubic.window < min(2 * self._most_out, cubic.ssthresh)
            ):
                cubic.grow(delivered, now, self.round_trip.smooth)
            if self.timer != REORDERING:
                self._arm(now)

    def _window_changed(self, window: int) -> None:
        """Process a new window of the peer."""
        if self.timer == WINDOW_PROBE and window > self.peer_window:
            self.backoff = 0
            self._disarm()
        self.peer_window = window
        if window > self.peer_window_most:
            self.peer_window_most = window
            self._size_pieces()

    def _size_pieces(self) -> None:
        """Compute `piece` again, after a change of the MSS or of the peer's largest window."""
        half = self.peer_window_most // 2
        self.piece = self.mss if half >= self.mss else max(half, min(LEAST_MSS, self.mss))

    def _detect(self, delivered: int, now: float) -> None:
        """Detect losses, and begin, continue or end recovery. `delivered` is the number of newly
        delivered segments.
        """
        board = self.board
        if self.phase != OPEN and self.una >= self._recover:
            self._recovered()
        if board:
            patience = board.patience(self.round_trip.least, self.phase != OPEN)
            due = board.overtaken(now, patience)
            if due < INFINITY:
                self._set(REORDERING, due)
            elif self.timer == REORDERING:
                self._arm(now)
            if self.phase == OPEN and board.next_lost() is not None:
                self._begin_recovery(RECOVERY)
        if self.phase == RECOVERY:
            self._pace(delivered)

    def path_takes(self, mss: int, now: float) -> None:
        """Reduce the MSS to `mss` bytes, because a router reports that larger segments do not pass
        (RFC 1191), and send the dropped segments again in parts. The congestion window stays,
        because this loss is no sign of congestion.
        """
        if mss >= self.mss:
            return
        self.mss = max(mss, LEAST_MSS)
        self._size_pieces()
        self.board.lose_larger(self.mss)
        lost = self.board.next_lost()
        while lost is not None:
            self._send_again(lost, now)
            lost = self.board.next_lost()

    # Timers.

    def _set(self, timer: int, at: float) -> None:
        """Set the retransmission timer to the purpose `timer` and the time `at`."""
        self.timer = timer
        self.timer_at = at
        if at < self.wake:
            self.wake = at

    def _disarm(self) -> None:
        """Stop the retransmission timer."""
        self.timer = IDLE
        self.timer_at = INFINITY

    def _arm(self, now: float) -> None:
        """Set the retransmission timer again, after a segment was sent or an acknowledgement has
        arrived.
        """
        trip = self.round_trip
        wait = trip.rto
        if self.backoff:
            wait = min(wait * 2 ** min(self.backoff, 10), RTO_MAX_S)
        board = self.board
        if not board:
            if self.outbox.size or (self.fin_wanted and not self.fin_sent):
                self._set(WINDOW_PROBE, now + wait)
            else:
                self._disarm()
            return
        if self.phase == OPEN and not self.probed and not board.sacked and trip.smooth:
            # The acknowledgement of a single segment may be delayed (RFC 8985, section 7.2).
            probe = 2 * trip.smooth + (RTO_MIN_S if len(board) == 1 else PROBE_LEAST_S)
            if probe < wait:
                self._set(TAIL_PROBE, now + probe)
                return
        self._set(TIMEOUT, now + wait)

    def due(self) -> float:
        """Return the time of the earliest timer; infinity if none is set."""
        return min(self.timer_at, self.ack_at, self.life_at)

    def tick(self, now: float) -> None:
        """Run the timers that have expired."""
        if now >= self.ack_at:
            self.ack_now = True
            self.interactive = False
        if now >= self.timer_at:
            self._timer_fired(now)
        if now >= self.life_at:
            self._expired(now)
        self.flush(now)
        self.wake = self.due()

    def _timer_fired(self, now: float) -> None:
        """Handle the expiry of the retransmission timer, by its purpose."""
        timer = self.timer
        self._disarm()
        if timer == TIMEOUT:
            self._timed_out(now)
        elif timer == TAIL_PROBE:
            self._probe_tail(now)
        elif timer == REORDERING:
            self._detect(0, now)
            if self.timer == IDLE:
                self._arm(now)
        elif timer == WINDOW_PROBE:
            self._probe_window(now)
        elif timer == HANDSHAKE:
            self._shake_again(now)

    def _timed_out(self, now: float) -> None:
        """Handle a retransmission timeout: mark all segments as lost and send the first again, or
        give up.
        """
        if not self.backoff:
            self._lost_since = now
        elif now - self._lost_since >= GIVE_UP_S or (
            self.orphan and self.backoff >= ORPHAN_RETRIES
        ):
            self.fail(errno.ETIMEDOUT)
            return
        if self.phase == OPEN or self.una >= self._recover:
            self._begin_recovery(LOSS)
        self.phase = LOSS
        self._recover = self.nxt
        self.board.lose_all()
        self.cubic.window = 1.0
        self.backoff += 1
        lost = self.board.next_lost()
        if lost is not None:
            self._send_again(lost, now)

    def _probe_tail(self, now: float) -> None:
        """Send new data or, if there is none, the last segment again, so that the loss of the last
        segments is detected (RFC 8985, section 7.3).
        """
        self.probed = True
        size = min(self.outbox.size, self._most(self.piece))
        if size and self.nxt + size <= self.una + self.peer_window:
            self._send(self.outbox.cut(size), self.fin_wanted and not self.outbox.size, now)
        else:
            last = self.board.last()
            if last is not None:
                self.board.replace(last)
                twin = Flight(last.seq, last.end, last.data, last.fin, now, True)
                self.board.add(twin)
                self._emit(twin.seq, twin.data, twin.fin, now)
        self._arm(now)

    def _probe_window(self, now: float) -> None:
        """Probe the closed window of the peer. If the window is merely small, send the data that
        fits.
        """
        room = self.una + self.peer_window - self.nxt
        size = min(room, self.outbox.size, self._most(self.piece))
        if size > 0:
            self._send(self.outbox.cut(size), False, now)
            return
        self._probes += 1
        if self._probes > (ORPHAN_RETRIES if self.orphan else RTO_RETRIES):
            self.fail(errno.ETIMEDOUT)
            return
        self.backoff += 1
        self._ask(now)
        self._arm(now)

    def _ask(self, now: float) -> None:
        """Send an empty segment with an old sequence number, which the peer must acknowledge."""
        inbox = self.inbox
        self.out.append(
            TcpSegment(self.una - 1, inbox.next, inbox.window(), b"", (), now, self.recent)
        )

    # Space for the writer.

    @property
    def queued(self) -> int:
        """Number of bytes from the program that the peer has not acknowledged."""
        return self.nxt - self.una + self.outbox.size

    @property
    def limit(self) -> int:
        """Maximum number of bytes that may be queued."""
        if self.send_limit:
            return self.send_limit
        wanted = int(3 * self.cubic.window) * self.mss
        if wanted <= SEND_BUFFER_BYTES:
            return SEND_BUFFER_BYTES
        return min(wanted, SEND_BUFFER_MAX_BYTES)

    # Implemented by the subclass `Connection`.

    def fail(self, number: int) -> None:
        raise NotImplementedError

    def _expired(self, now: float) -> None:
        raise NotImplementedError

    def _shake_again(self, now: float) -> None:
        raise NotImplementedError
