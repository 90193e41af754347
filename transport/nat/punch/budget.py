"""Budget for what hole punching sends to addresses that peers have named, over all attempts."""

from ...networks import targets
from ...rates import Rate, Rates, TargetBudget
from .defaults import PunchLimits


class Budget:
    """Counters of datagrams and TCP dials by target."""

    def __init__(self, limits: PunchLimits) -> None:
        self.refused = 0  # datagrams and dials that the budget did not allow
        window_s, accounts = limits.window_s, limits.targets
        self._datagrams = TargetBudget(limits.target_datagrams, window_s, accounts)
        self._syns = TargetBudget(limits.target_syns, window_s, accounts)
        self._unseen = Rates(Rate(*limits.unseen), Rate(*limits.unseen_total))

    def datagram(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address. Return False if it must not be sent."""
        return self._counted(self._datagrams.take(ip, now))

    def unseen(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address that only the peer has named. Return False if it must
        not be sent."""
        may = self._unseen.take(targets(ip)[0].name, now)
        return self.datagram(ip, now) if may else self._counted(False)

    def syn(self, ip: str, now: float) -> bool:
        """Count one TCP dial. Return False if it must not be made."""
        return self._counted(self._syns.take(ip, now))

    def datagrams_left(self, ip: str, now: float) -> int:
        """Return how many datagrams may still be sent to an IP address now."""
        return self._datagrams.left(ip, now)

    def _counted(self, allowed: bool) -> bool:
        self.refused += not allowed
        return allowed
