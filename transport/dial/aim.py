"""Limiter of failed dials to addresses that peers named.

An author can put a victim's address into its record. Every peer that wants a link to the author
then dials that address, again and again while it searches for a path. Each node therefore limits
its failed dials by target (`rates.TargetBudget`). The limit is low for a target where no peer has
answered this node, and higher elsewhere. A dial that reaches the expected peer is not counted. See
docs/adr/0026.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .. import defaults
from ..address import Address
from ..bytestream import PathKind
from ..errors import DialFailed
from ..networks import may_dial_port, path_kind_to, plain_ip, targets
from ..rates import TargetBudget


class FailedDialLimiter:
    """Limiter of failed dials by target, for one node.

    `now` returns the time on the host's clock. Within `defaults.AIM_WINDOW_S` seconds, `misses`
    dials may fail at a target where a peer has answered, and `strange` at any other target. A QUIC
    dial sends several datagrams of 1,200 bytes. At a target where a peer has answered it therefore
    counts as several dials, and elsewhere it has a limit of its own, `strange_udp`. `memory` is the
    largest number of targets with a counter.
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
        self._now = now
        window_s = defaults.AIM_WINDOW_S
        self._known = TargetBudget(misses, window_s, memory)
        self._strange = TargetBudget(strange, window_s, memory)
        self._strange_udp = TargetBudget(strange_udp, defaults.AIM_STRANGE_UDP[1], memory)
        self._near_tried: OrderedDict[str, float] = OrderedDict()
        self._answered: OrderedDict[str, None] = OrderedDict()
        self._given: set[tuple[str, int]] = set()

    def give(self, address: Address) -> None:
        """Allow dials to an address whatever its port is, because the owner named the address."""
        self._given.add((address.host, address.port))

    def answered(self, ip: str) -> None:
        """Record that a peer has answered at an IP address, or connected from it."""
        if plain_ip(ip) is None:
            return
        name = targets(ip)[0].name
        self._near_tried.pop(ip, None)
        self._answered[name] = None
        self._answered.move_to_end(name)
        while len(self._answered) > defaults.AIM_KNOWN:
            self._answered.popitem(last=False)

    def is_known(self, address: Address) -> bool:
        """Return whether a peer has answered at this IP address, or the owner named the address."""
        given = (address.host, address.port) in self._given
        return given or targets(address.host)[0].name in self._answered

    @contextmanager
    def at(self, address: Address) -> Iterator[None]:
        """Open a context for one dial, which is counted as failed if the block raises.

        Host names and loopback addresses are not limited, because only the owner can name them.
        Private addresses where a peer has answered are not limited either. Raises DialFailed with
        code `forbidden` for a port below 1024 other than 443 that the owner did not name, and with
        code `too-often` if the limit is reached.
        """
        if not may_dial_port(address.port) and (address.host, address.port) not in self._given:
            raise DialFailed("forbidden", f"`{address}`: peers cannot name ports below 1024")
        ip = plain_ip(address.host)
        path_kind = PathKind.LOOPBACK if ip is None else path_kind_to(ip)
        known = self.is_known(address)
        if ip is None or path_kind is PathKind.LOOPBACK or (path_kind is PathKind.LAN and known):
            yield
            return
        if path_kind is PathKind.LAN and not self._may_knock(ip):
            raise DialFailed("too-often", f"too many private addresses like `{ip}` did not answer")
        udp = address.transport == "udp"
        budget, cost = self._known, defaults.AIM_UDP_COST if udp else 1
        if not known:
            budget, cost = self._strange_udp if udp else self._strange, 1
        yield from self._count(budget, ip, cost, address)

    def _count(self, budget: TargetBudget, ip: str, cost: int, address: Address) -> Iterator[None]:
        """Yield once, and count `cost` failed dials if the caller raises.

        Raises DialFailed with code `too-often` if the limit is reached. Dials under way count
        towards the limit.
        """
        if budget.left(ip, self._now()) < cost:
            raise DialFailed("too-often", f"too many recent dials to `{address}` failed")
        try:
            with budget.hold(ip, cost):
                yield
        except BaseException:
            for _ in range(cost):
                budget.take(ip, self._now())
            raise
        else:
            self.answered(ip)

    def _may_knock(self, ip: str) -> bool:
        """Return whether a private address may be dialled.

        The records of strangers must not make this node scan its owner's network.
        """
        now, tried = self._now(), self._near_tried
        while tried and next(iter(tried.values())) + defaults.AIM_WINDOW_S <= now:
            tried.popitem(last=False)
        if ip not in tried and len(tried) >= defaults.AIM_NEAR:
            return False
        tried[ip] = now
        tried.move_to_end(ip)
        return True
