"""How often an address that others have named is dialled in vain.

Anybody may write a stranger's address into a record of its own, and have every peer dial it that
loses the link to the author, again and again for as long as it looks for a path. So each node's
share is bounded by target (`punch.budget`). What answers as the peer that was meant costs nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from . import defaults
from .address import Address
from .errors import DialFailed
from .pipe import Way
from .place import plain_ip, way_to
from .punch.budget import Budget, target
from .punch.defaults import PunchLimits


class Aim:
    """`now` is the host's clock. `misses` dials may fail at one target within ten minutes; one by
    QUIC, which is some datagrams of 1,200 bytes, counts as several."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        misses: int = defaults.AIM_MISSES,
        targets: int = defaults.AIM_TARGETS,
    ) -> None:
        self._now = now
        self._budget = Budget(replace(PunchLimits(), target_datagrams=misses, targets=targets))
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def at(self, address: Address) -> Iterator[None]:
        """Around one dial. Raises DialFailed (`too-often`) where it must not be; a dial that does
        not come to a link, for whatever reason, is a miss.

        Names are the owner's word, and addresses of the own network or machine come from there
        (`state.reach`): those are not counted.
        """
        ip = plain_ip(address.host)
        if ip is None or way_to(ip) is not Way.DIRECT:
            yield
            return
        key, cost = target(ip), defaults.AIM_UDP_COST if address.transport == "udp" else 1
        left = self._budget.datagrams_left(ip, self._now()) - self._under_way[key]
        if left < cost:
            raise DialFailed("too-often", f"`{address}` was dialled in vain too often of late")
        self._under_way[key] += cost
        try:
            yield
        except BaseException:
            for _ in range(cost):
                self._budget.datagram(ip, self._now())
            raise
        finally:
            self._under_way[key] -= cost
            if not self._under_way[key]:
                del self._under_way[key]
