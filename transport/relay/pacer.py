"""One rate, shared fairly by the circuits that ask for bytes. No I/O.

A token bucket whose tokens are dealt out: what is earned while circuits wait goes to those that
wait, a grain to each in turn; what is earned while none does is a pool for the next one. A part of
the pool is kept for circuits that take little, as a token must not wait behind a transfer of
weights. So a circuit that wants little gets it at once, those that want more than there is get
equal parts, and nothing that is lent stays unused. While a member waits, all strangers together
get a quarter at most, however many they are. Never more than `rate` x t + the burst leaves in t
seconds.
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


class Share:
    """One taker's part of the rate. Made by `Pacer.join`."""

    __slots__ = ("_pacer", "asked", "hungry", "recent", "tokens", "turn", "weight")

    def __init__(self, pacer: "Pacer", weight: int) -> None:
        self.weight = weight
        self.tokens = 0.0  # bytes dealt to this one alone; below 0 it has taken in advance
        self.turn = 0.0  # bytes dealt to it since it came to the head of its line
        self.hungry = False  # it asked for more than there was, and stands in a line
        self.asked = 0.0
        self.recent = 0.0  # bytes moved lately, of each second that has passed e^-1
        self._pacer = pacer

    def room(self, now: float) -> int:
        """Bytes it may move now."""
        return self._pacer.room(self, now)

    def spend(self, size: int) -> None:
        """So many bytes have been moved."""
        self._pacer.spend(self, size)

    def pause(self) -> float:
        """Seconds until it is worth asking again, after `room` was too little."""
        return self._pacer.pause(self)

    def leave(self) -> None:
        """It wants nothing any more; may be repeated."""
        self._pacer.leave(self)


class Pacer:
    """`rate` in bytes per second, 0 for nothing at all."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = max(0, rate)
        self._burst = self._rate * BURST_S
        self._reserve = self._burst / 4
        self._pool = self._burst
        self._active = 0  # shares that have asked lately
        self._earned = now  # up to when tokens have been dealt
        self._shares: dict[Share, None] = {}
        self._members: deque[Share] = deque()  # those that wait, the next one first
        self._strangers: deque[Share] = deque()

    def join(self, weight: int) -> Share:
        """One more taker: of weight 1, a stranger, else a member."""
        share = Share(self, weight)
        self._shares[share] = None
        return share

    def leave(self, share: Share) -> None:
        """What the taker did not use, or took in advance, is everybody's."""
        if share in self._shares:
            del self._shares[share]
            self._pool += share.tokens
            share.tokens = 0.0
            self._leave_line(share)

    def room(self, share: Share, now: float) -> int:
        """Bytes that `share` may move now."""
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

    def spend(self, share: Share, size: int) -> None:
        """Take `size` bytes of its own, then of the pool; what neither has it owes."""
        if share not in self._shares:
            return
        share.recent += size
        common = min(max(0.0, size - max(0.0, share.tokens)), max(0.0, self._pool))
        self._pool -= common
        share.tokens -= size - common

    def pause(self, share: Share) -> float:
        """Seconds until `share` will have about a grain more."""
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
        """Bytes worth moving; small enough that every share can have one within the burst, and
        large enough that the packets around them do not cost more than they do."""
        most = self._burst / (2 * max(2, len(self._shares)))
        return min(float(GRAIN_BYTES), max(most, float(LEAST_GRAIN_BYTES)))

    @property
    def _light(self) -> float:
        """Bytes lately moved up to which a share is a light one: half of an equal part at most."""
        return min(float(LIGHT_BYTES), self._rate / (2 * max(1, self._active)))

    def _line(self, share: Share) -> deque[Share]:
        return self._members if share.weight > 1 else self._strangers

    def _leave_line(self, share: Share) -> None:
        if share.hungry:
            share.hungry = False
            self._line(share).remove(share)

    def _part(self) -> float:
        """The part of what is earned that members get: by weight, and not less than theirs."""
        members = sum(share.weight for share in self._members)
        if not members:
            return 0.0
        return max(MEMBERS_PART, members / (members + len(self._strangers)))

    def _deal(self, now: float) -> None:
        """Hand out what was earned since the last time, as far as the bucket holds it."""
        elapsed = now - self._earned
        if elapsed < DEAL_S:
            return
        self._earned = now
        self._active = sum(now - share.asked <= PATIENCE_S for share in self._shares)
        for share in [*self._members, *self._strangers]:
            if now - share.asked > PATIENCE_S:  # it has gone quiet, and gives its tokens back
                self._leave_line(share)
                self._pool += max(0.0, share.tokens)
                share.tokens = min(0.0, share.tokens)
        held = self._pool + sum(share.tokens for share in self._shares)
        earned = min(elapsed * self._rate, max(0.0, self._burst - held))
        debt = min(earned, max(0.0, self._reserve - self._pool))  # also of those that have left
        part = (earned - debt) * self._part()
        rest = self._serve(self._strangers, earned - debt - part)
        self._pool += debt + self._serve(self._strangers, self._serve(self._members, part + rest))

    def _serve(self, line: deque[Share], amount: float) -> float:
        """Deal a grain to each share in turn; return the rest of `amount`."""
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
