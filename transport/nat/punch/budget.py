"""Budget for what hole punching sends to addresses that peers have named, in all attempts
together."""

from ...networks import targets
from ...rates import Rate, Rates, TargetBudget
from .defaults import PunchLimits


class PunchBudget:
    """Counters of the datagrams and of the TCP SYNs that were sent to each target.

    A target is an IP address, or a network that may belong to one victim (`networks.targets`).
    Times are seconds on the host's clock.
    """

    def __init__(self, limits: PunchLimits) -> None:
        self.refused = 0  # datagrams and SYNs that the budget did not allow, a count
        window_s, accounts = limits.window_s, limits.targets
        self.datagrams = TargetBudget(limits.target_datagrams, window_s, accounts)
        self._syns = TargetBudget(limits.target_syns, window_s, accounts)
        self._unseen = Rates(Rate(*limits.unseen), Rate(*limits.unseen_total))

    def datagram(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent."""
        return self._counted(self.datagrams.take(ip, now))

    def unseen(self, ip: str, now: float) -> bool:
        """Count one datagram to an IP address, or return False if it must not be sent.

        Call this for an address at which no third node has seen the peer. Its limits are lower.
        """
        may = self._unseen.take(targets(ip)[0].name, now)
        return self.datagram(ip, now) if may else self._counted(False)

    def syn(self, ip: str, now: float) -> bool:
        """Count one TCP SYN to an IP address, or return False if it must not be sent."""
        return self._counted(self._syns.take(ip, now))

    def datagrams_left(self, ip: str, now: float) -> int:
        """Return the number of datagrams that may be sent to an IP address now."""
        return self.datagrams.left(ip, now)

    def _counted(self, allowed: bool) -> bool:
        """Count a refusal if `allowed` is False. Returns `allowed`."""
        self.refused += not allowed
        return allowed
