"""Which addresses that others have named are dialled, and how often in vain.

Anybody may write a stranger's address into a record of its own, and have every peer dial it that
wants a link to the author, again and again for as long as it looks for a path. So each node's
share is bounded by target (`punch.budget`): a little where no peer has ever answered this node,
more where one has. What answers as the peer that was meant costs nothing. docs/adr/0026 says why.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from . import defaults
from .address import Address
from .errors import DialFailed
from .pipe import Way
from .place import may_dial_port, plain_ip, targets, way_to
from .punch.budget import Budget
from .punch.defaults import PunchLimits


class Aim:
    """`now` is the host's clock. `misses` dials may fail within ten minutes at a target where a
    peer has answered, by QUIC, which is some datagrams of 1,200 bytes, fewer; `strange` elsewhere.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        misses: int = defaults.AIM_MISSES,
        strange: int = defaults.AIM_STRANGE,
        strange_udp: int = defaults.AIM_STRANGE_UDP[0],
        memory: int = defaults.AIM_TARGETS,
    ) -> None:
        limits = replace(PunchLimits(), targets=memory)
        udp = replace(limits, target_datagrams=strange_udp, window_s=defaults.AIM_STRANGE_UDP[1])
        self._now = now
        self._window_s = limits.window_s
        self._known = Budget(replace(limits, target_datagrams=misses))
        self._strange = Budget(replace(limits, target_datagrams=strange))
        self._strange_udp = Budget(udp)
        self._near_tried: OrderedDict[str, float] = OrderedDict()
        self._under_way: Counter[tuple[Budget, str]] = Counter()
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._given: set[tuple[str, int]] = set()

    def give(self, address: Address) -> None:
        """The owner names this address: it may have any port, and is tried again and again."""
        self._given.add((address.host, address.port))

    def answered(self, ip: str) -> None:
        """A peer has answered this node at an IP address, or come from there."""
        if plain_ip(ip) is None:
            return
        name = targets(ip)[0].name
        self._near_tried.pop(ip, None)
        self._answered[name] = None
        self._answered.move_to_end(name)
        while len(self._answered) > defaults.AIM_KNOWN:
            self._answered.popitem(last=False)

    def is_known(self, address: Address) -> bool:
        """Whether a peer has answered there, at whichever port, or the owner names it."""
        given = (address.host, address.port) in self._given
        return given or targets(address.host)[0].name in self._answered

    @contextmanager
    def at(self, address: Address) -> Iterator[None]:
        """Around one dial. Raises DialFailed where it must not be: `forbidden`, as a peer names
        such a port for no good, `too-often`. A dial that does not come to a link, for whatever
        reason, is a miss.

        Names are the owner's word, and peers of the own machine are its owner's: those are not
        counted, nor are private addresses at which a peer has answered.
        """
        if not may_dial_port(address.port) and (address.host, address.port) not in self._given:
            raise DialFailed("forbidden", f"`{address}`: that port is not dialled at a peer's word")
        ip = plain_ip(address.host)
        way = Way.LOOPBACK if ip is None else way_to(ip)
        known = self.is_known(address)
        if ip is None or way is Way.LOOPBACK or (way is Way.LAN and known):
            yield
            return
        if way is Way.LAN and not self._may_knock(ip):
            raise DialFailed("too-often", f"no peer is at too many addresses such as `{ip}`")
        udp = address.transport == "udp"
        budget, cost = self._known, defaults.AIM_UDP_COST if udp else 1
        if not known:
            budget, cost = self._strange_udp if udp else self._strange, 1
        yield from self._count(budget, ip, cost, address)

    def _count(self, budget: Budget, ip: str, cost: int, address: Address) -> Iterator[None]:
        key = budget, targets(ip)[0].name
        if budget.datagrams_left(ip, self._now()) - self._under_way[key] < cost:
            raise DialFailed("too-often", f"`{address}` was dialled in vain too often of late")
        self._under_way[key] += cost
        try:
            yield
        except BaseException:
            for _ in range(cost):
                budget.datagram(ip, self._now())
            raise
        else:
            self.answered(ip)
        finally:
            self._under_way[key] -= cost
            if not self._under_way[key]:
                del self._under_way[key]

    def _may_knock(self, ip: str) -> bool:
        """Private addresses are of this node's own network: a stranger's book must not have all of
        it looked at."""
        now, tried = self._now(), self._near_tried
        while tried and next(iter(tried.values())) + self._window_s <= now:
            tried.popitem(last=False)
        if ip not in tried and len(tried) >= defaults.AIM_NEAR:
            return False
        tried[ip] = now
        tried.move_to_end(ip)
        return True
