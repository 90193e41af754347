"""Fair division of one rate among circuits. No I/O.

This is a token bucket that distributes its tokens; one token is one byte. Tokens that are earned
while circuits wait go to those circuits, one grain to each in turn. A grain is the smallest number
of bytes that is worth forwarding at once. Other tokens go to a pool for the next circuit.

A part of the pool is reserved for light circuits, which move little, because generated text must
not wait behind a transfer of weights. A light circuit is therefore served at once, heavy ones get
equal parts, and no capacity is left unused. While a member waits, all strangers together get at
most a quarter, however many they are. In t seconds, at most `rate` x t plus the burst leaves.
"""

from collections import deque
from math import exp

from .defaults import (
    BURST_S,
    CRUMBS,
    DEAL_S,
    GRAIN_BYTES,
    LEAST_GRAIN_BYTES,
    LIGHT_BYTES,
    MEMBERS_PART,
    PATIENCE_S,
    PAUSE_S,
)


class CircuitShare:
    """A circuit's part of the rate. Created by `RelayLimiter.join`."""

    __slots__ = ("_limiter", "asked", "hungry", "recent", "tokens", "turn", "weight")

    def __init__(self, limiter: "RelayLimiter", weight: int) -> None:
        self.weight = weight
        self.tokens = 0.0  # bytes assigned to this circuit alone; negative after borrowing
        self.turn = 0.0  # bytes assigned since the circuit became the first in its queue
        self.hungry = False  # whether it has asked for more than there was, and waits in a queue
        self.asked = 0.0  # time of the latest request
        self.recent = 0.0  # bytes moved recently, which decay by a factor of e per second
        self._limiter = limiter

    def room(self, now: float) -> int:
        """Return how many bytes the circuit may move now."""
        return self._limiter.room(self, now)

    def spend(self, size: int) -> None:
        """Charge this share for `size` bytes that were moved."""
        self._limiter.spend(self, size)

    def pause(self) -> float:
        """Return the seconds after which to call `room` again, if it returned too little."""
        return self._limiter.pause(self)

    def leave(self) -> None:
        """Remove this share from the limiter. May be called repeatedly."""
        self._limiter.leave(self)


class RelayLimiter:
    """Distributor of `rate` bytes per second. With a rate of 0, nothing may be moved."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = max(0, rate)
        self._burst = self._rate * BURST_S
        self._reserve = self._burst / 4
        self._pool = self._burst
        self._active = 0  # shares with a recent request, a count
        self._earned = now  # time up to which tokens have been distributed
        self._shares: dict[CircuitShare, None] = {}
        self._members: deque[CircuitShare] = deque()  # waiting members, the next one first
        self._strangers: deque[CircuitShare] = deque()  # waiting strangers, the next one first

    def join(self, weight: int) -> CircuitShare:
        """Create a share. A stranger has the weight 1, and a member more."""
        share = CircuitShare(self, weight)
        self._shares[share] = None
        return share

    def leave(self, share: CircuitShare) -> None:
        """Remove a share. Its unused tokens, or its debt, go to the pool."""
        if share in self._shares:
            del self._shares[share]
            self._pool += share.tokens
            share.tokens = 0.0
            self._leave_line(share)

    def room(self, share: CircuitShare, now: float) -> int:
        """Return how many bytes `share` may move now."""
        if share not in self._shares:
            return 0
        self._deal(now)
        share.recent *= exp(share.asked - now) if now > share.asked else 1.0
        share.asked = now
        kept = min(max(0.0, self._pool), self._reserve)
        light = self._light * (1 - MEMBERS_PART if self._members and share.weight == 1 else 1)
        common = max(0.0, self._pool - kept) + min(kept, max(0.0, light - share.recent))
        found = int(share.tokens + common)
        if found >= self._grain:
            self._leave_line(share)
        elif not share.hungry:
            share.hungry, share.turn = True, 0.0
            self._line(share).append(share)
        return found if found >= self._grain / CRUMBS else 0

    def spend(self, share: CircuitShare, size: int) -> None:
        """Charge `size` bytes to the share's own tokens, then to the pool, and the rest as a
        debt."""
        if share not in self._shares:
            return
        share.recent += size
        common = min(max(0.0, size - max(0.0, share.tokens)), max(0.0, self._pool))
        self._pool -= common
        share.tokens -= size - common

    def pause(self, share: CircuitShare) -> float:
        """Return the seconds until `share` will have about one more grain."""
        shortest, longest = PAUSE_S
        if not self._rate:
            return longest
        line = self._line(share)
        part = 1 - self._part() if line is self._strangers else self._part() or 1.0
        before = line.index(share) if share.hungry else len(line)
        missing = before * self._grain + self._grain - share.tokens
        return min(max(shortest, missing / (self._rate * max(part, 1e-3))), longest)

    @property
    def _grain(self) -> float:
        """Smallest number of bytes that are forwarded at once for one circuit.

        The burst is so small that it serves every circuit at least once, and so large that packet
        headers do not cost more than the payload.
        """
        most = self._burst / (2 * max(2, len(self._shares)))
        return min(float(GRAIN_BYTES), max(most, float(LEAST_GRAIN_BYTES)))

    @property
    def _light(self) -> float:
        """Number of recent bytes up to which a share counts as light: at most half of an equal
        part."""
        return min(float(LIGHT_BYTES), self._rate / (2 * max(1, self._active)))

    def _line(self, share: CircuitShare) -> deque[CircuitShare]:
        """Return the queue to which a share belongs."""
        return self._members if share.weight > 1 else self._strangers

    def _leave_line(self, share: CircuitShare) -> None:
        """Remove a share from its queue."""
        if share.hungry:
            share.hungry = False
            self._line(share).remove(share)

    def _part(self) -> float:
        """Return the members' part of new tokens, 0 to 1: by weight, but at least `MEMBERS_PART`.

        Returns 0 if no member waits.
        """
        members = sum(share.weight for share in self._members)
        if not members:
            return 0.0
        return max(MEMBERS_PART, members / (members + len(self._strangers)))

    def _deal(self, now: float) -> None:
        """Distribute the tokens earned since the last call. Tokens beyond the capacity of the
        bucket are lost."""
        elapsed = now - self._earned
        if elapsed < DEAL_S:
            return
        self._earned = now
        self._active = sum(now - share.asked <= PATIENCE_S for share in self._shares)
        for share in [*self._members, *self._strangers]:
            if now - share.asked > PATIENCE_S:  # it is inactive, so it returns its tokens
                self._leave_line(share)
                self._pool += max(0.0, share.tokens)
                share.tokens = min(0.0, share.tokens)
        held = self._pool + sum(share.tokens for share in self._shares)
        earned = min(elapsed * self._rate, max(0.0, self._burst - held))
        debt = min(
            earned, max(0.0, self._reserve - self._pool)
        )  # includes the debts of removed shares
        part = (earned - debt) * self._part()
        rest = self._serve(self._strangers, earned - debt - part)
        self._pool += debt + self._serve(self._strangers, self._serve(self._members, part + rest))

    def _serve(self, line: deque[CircuitShare], amount: float) -> float:
        """Assign a grain to each share of a queue in turn. Return the rest of `amount`."""
        grain = self._grain
        for _ in range(2 * len(line)):
            if amount <= 0:
                break
            share = line[0]
            given = max(0.0, min(amount, grain - share.turn, 2 * grain - share.tokens))
            share.tokens += given
            share.turn += given
            amount -= given
            if amount > 0:
                share.turn = 0.0
                line.rotate(-1)
        return amount
