"""Budget for what this node sends to addresses that peers have named, in all attempts together.

An attacker could make many peers name the address of a victim, and so direct a whole swarm at it.
Each node therefore limits what it sends to each address, and to each network that may belong to one
victim (`networks.targets`). The limit holds for a sliding window. Datagrams are counted in slices
of a sixtieth of the window. A slice that lies only partly inside the window counts in full, so that
no window exceeds the limit.
"""

from collections import deque
from typing import Final

from ...networks import targets
from ...rates import Rate, Rates
from .defaults import PunchLimits

_SLICES: Final = 60


class _Account:
    """Sliding count of the datagrams, or of the TCP dials, to one target."""

    __slots__ = ("slices", "spent")

    def __init__(self) -> None:
        self.slices: deque[list[int]] = deque()  # [number of the slice, count in it]
        self.spent = 0

    def forget(self, before: int) -> None:
        """Remove the slices with numbers below `before`."""
        while self.slices and self.slices[0][0] < before:
            self.spent -= self.slices.popleft()[1]

    def add(self, number: int, count: int) -> None:
        """Add `count` to the slice with this number, which is the newest one."""
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0])
        self.slices[-1][1] += count
        self.spent += count


class Budget:
    """Counters of datagrams and of TCP dials for each target.

    There are at most `PunchLimits.targets` counters of each kind. Times are seconds on the host's
    clock.
    """

    def __init__(self, limits: PunchLimits) -> None:
        self.refused = 0  # datagrams and dials that the budget did not allow
        self._limits = limits
        self._slice_s = limits.window_s / _SLICES
        self._datagrams: dict[str, _Account] = {}
        self._syns: dict[str, _Account] = {}
        self._unseen = Rates(Rate(*limits.unseen), Rate(*limits.unseen_total))

    def datagram(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent."""
        return self._spend(self._datagrams, ip, self._limits.target_datagrams, now)

    def unseen(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent.

        Call this for an address at which no third node has seen the peer. Its limits are lower.
        """
        if not self._unseen.take(targets(ip)[0].name, now):
            self.refused += 1
            return False
        return self.datagram(ip, now)

    def syn(self, ip: str, now: float) -> bool:
        """Count one TCP SYN to an IP address, or return False if it must not be sent."""
        return self._spend(self._syns, ip, self._limits.target_syns, now)

    def datagrams_left(self, ip: str, now: float) -> int:
        """Return the number of datagrams that may be sent to an IP address now."""
        left = []
        for target in targets(ip):
            account = self._datagrams.get(target.name)
            spent = 0
            if account is not None:
                account.forget(self._oldest(now))
                spent = account.spent
            left.append(self._limits.target_datagrams * target.share - spent)
        return min(left)

    def _oldest(self, now: float) -> int:
        """Return the number of the oldest slice that counts.

        The newest slice is not complete yet, so 61 slices count.
        """
        return int(now / self._slice_s) - _SLICES

    def _spend(self, accounts: dict[str, _Account], ip: str, most: int, now: float) -> bool:
        """Count one datagram or SYN to `ip` against each target that contains it.

        Returns False, and counts it as refused, if a target has reached its limit. `most` is the
        limit of the smallest target.
        """
        found = []
        for target in targets(ip):
            account = accounts.get(target.name)
            if account is None:
                if len(accounts) >= self._limits.targets and not self._make_room(accounts, now):
                    self.refused += 1
                    return False
                account = accounts[target.name] = _Account()
            account.forget(self._oldest(now))
            if account.spent >= most * target.share:
                self.refused += 1
                return False
            found.append(account)
        for account in found:
            account.add(int(now / self._slice_s), 1)
        return True

    def _make_room(self, accounts: dict[str, _Account], now: float) -> bool:
        """Remove the counters of targets to which nothing was sent for a whole window.

        Returns whether there is room for a new target. Other counters are never removed: otherwise
        an attacker could reset the counter of its victim by naming a thousand other addresses.
        """
        oldest = self._oldest(now)
        for key, account in list(accounts.items()):
            account.forget(oldest)
            if not account.spent:
                del accounts[key]
        return len(accounts) < self._limits.targets
