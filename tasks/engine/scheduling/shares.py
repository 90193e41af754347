"""Virtual time of gateways, by networks, of their users, and of their sessions. No I/O.

`scheduler.py` says what the numbers mean and when they are charged.
"""

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import sqrt

from ..defaults import USERS
from .costs import AdapterCosts, StepCosts


@dataclass(slots=True, eq=False)
class GatewayNetwork:
    """A network from which gateways come. Together they get the part of one gateway, so a network
    gains nothing from a second key."""

    lately: "dict[Gateway, None]" = field(default_factory=dict)
    """The gateways that have work, or were in one of the last steps."""

    def weight(self, since: int) -> int:
        """Return among how many gateways the part is divided: those that have work, or were in a
        step from `since` on."""
        if len(self.lately) > 1:
            self.lately = {each: None for each in self.lately if each.ready or each.step >= since}
        return max(1, len(self.lately))


@dataclass(slots=True, eq=False)
class Gateway:
    """Virtual time of one gateway, in seconds, and its users by their tags."""

    network: GatewayNetwork
    number: int  # decides between equal times
    time: float
    weight: int = 1  # by which its seconds are multiplied: the gateways that divide its part
    served: float = 0.0  # virtual time of the user that was served last
    shares: int = 0  # open sessions, a count
    ready: int = 0  # sessions with work, a count
    step: int = 0  # number of the last step that it was in
    before: float = 0.0  # its virtual time when that step began
    prompted: int = 0  # number of the last step that had a part of one of its prompts
    users: "dict[bytes, User]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class User:
    """Virtual time of one user of a gateway, in seconds."""

    gateway: Gateway
    number: int  # decides between equal times
    time: float
    served: float = 0.0  # virtual time of the session that was served last
    shares: int = 0  # open sessions, a count
    ready: int = 0  # sessions with work, a count


@dataclass(slots=True, eq=False)
class Share:
    """A session as the scheduler sees it. `rows` are wanted from `position` on.

    A running text wants one row, or more if it has drafts for what follows.
    """

    user: User
    costs: StepCosts
    background: bool
    adapter: AdapterCosts | None
    row: float  # seconds for a row of a prompt, without attention
    text_row: float  # the same of a text
    time: float = 0.0  # virtual time in seconds
    charged: float = 0.0  # seconds charged for the last step that it was in
    rows: int = 0
    position: int = 0
    decode: bool = False  # whether the rows continue a text, and are not part of a prompt
    more: bool = False  # whether other work of the session waits behind these rows
    pick: float = 0.0  # seconds for a token beyond those for the likeliest one

    def picks(self, seconds: float) -> None:
        """Record what each token takes beyond the choice of the likeliest one, in seconds."""
        self.pick = seconds
        self.text_row = self.row + self.costs.chosen + seconds


def affordable(share: Share, seconds: float) -> int:
    """Return how many rows of a session's prompt can be computed in `seconds`."""
    if share.adapter is not None:
        seconds -= share.adapter.fixed
    pair = share.costs.attended
    first = share.row + pair * (share.position + 0.5)
    if seconds >= share.rows * (first + 0.5 * pair * share.rows):
        seconds -= share.pick
    if seconds <= 0:
        return 0
    # Each row takes `pair` longer than the row before it.
    both = first + sqrt(first * first + 2 * pair * seconds)
    return min(share.rows, int(2 * seconds / both)) if both > 0 else share.rows


def prune_users(gateway: Gateway) -> None:
    """Remove users without sessions if the gateway has too many."""
    if len(gateway.users) >= USERS:
        gateway.users = {tag: user for tag, user in gateway.users.items() if user.shares}


def fair(shares: Collection[Share]) -> Iterator[Share]:
    """Yield sessions in the order of the virtual time of their gateways, users, and then their own.

    Of equal ones, the one that has waited longest comes first. The caller charges each one before
    it takes the next.
    """
    waiting: dict[User, list[Share]] = {}
    for share in sorted(shares, key=lambda share: share.time)[::-1]:
        waiting.setdefault(share.user, []).append(share)
    users: dict[Gateway, list[tuple[float, int, User]]] = {}
    for user in waiting:
        users.setdefault(user.gateway, []).append((user.time, user.number, user))
    for those in users.values():
        heapq.heapify(those)
    gateways = [(gateway.time, gateway.number, gateway) for gateway in users]
    heapq.heapify(gateways)
    while gateways:
        gateway = gateways[0][2]
        those = users[gateway]
        user = those[0][2]
        yield waiting[user].pop()
        if waiting[user]:
            heapq.heapreplace(those, (user.time, user.number, user))
        else:
            heapq.heappop(those)
        if those:
            heapq.heapreplace(gateways, (gateway.time, gateway.number, gateway))
        else:
            heapq.heappop(gateways)
