"""Budget for what this node sends to addresses that peers have named, over all its attempts.

An attacker that makes peers name an address must not be able to aim a swarm at it. So each node
bounds what it sends per address and per network that may belong to one victim (`place.targets`).
Spending is counted in slices of a sixtieth of the window. A slice that is partly over still counts,
so no window exceeds the bound.
"""

from collections import deque
from typing import Final

from ...networks import targets
from ...rates import Rate, Rates
from .defaults import PunchLimits

_SLICES: Final = 60


class _Account:
    """Spending of one kind on one target."""

    __slots__ = ("slices", "spent")

    def __init__(self) -> None:
        self.slices: deque[list[int]] = deque()  # [slice's number, count]
        self.spent = 0

    def forget(self, before: int) -> None:
        while self.slices and self.slices[0][0] < before:
            self.spent -= self.slices.popleft()[1]

    def add(self, number: int, count: int) -> None:
        if not self.slices or self.slices[-1][0] != number:
            self.slices.append([number, 0])
        self.slices[-1][1] += count
        self.spent += count


class Budget:
    """Counters of datagrams and TCP dials by target; at most `PunchLimits.targets` of each."""

    def __init__(self, limits: PunchLimits) -> None:
        self.refused = 0  # datagrams and dials that the budget did not allow
        self._limits = limits
        self._slice_s = limits.window_s / _SLICES
        self._datagrams: dict[str, _Account] = {}
        self._syns: dict[str, _Account] = {}
        self._unseen = Rates(Rate(*limits.unseen), Rate(*limits.unseen_total))

    def datagram(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address. Return False if it must not be sent."""
        return self._spend(self._datagrams, ip, self._limits.target_datagrams, now)

    def unseen(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address that only the peer has named. Return False if it must
        not be sent."""
        if not self._unseen.take(targets(ip)[0].name, now):
            self.refused += 1
            return False
        return self.datagram(ip, now)

    def syn(self, ip: str, now: float) -> bool:
        """Count one TCP dial. Return False if it must not be made."""
        return self._spend(self._syns, ip, self._limits.target_syns, now)

    def datagrams_left(self, ip: str, now: float) -> int:
        """Return how many datagrams may still be sent to an IP address now."""
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
        """Return the oldest slice that counts. The newest is incomplete, so one extra counts."""
        return int(now / self._slice_s) - _SLICES

    def _spend(self, accounts: dict[str, _Account], ip: str, most: int, now: float) -> bool:
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
        """Forget targets on which nothing was spent for a window. Active ones are never forgotten:
        otherwise an attacker could reset its target by naming a thousand others."""
        oldest = self._oldest(now)
        for key, account in list(accounts.items()):
            account.forget(oldest)
            if not account.spent:
                del accounts[key]
        return len(accounts) < self._limits.targets
