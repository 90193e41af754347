"""Choice of the rows that a worker computes in each step. No I/O; the simulator uses the same code.

A row is one position of one session. All rows of a step belong to one shard and share the reading
of its weights, which is most of the work on small batches. Each step has a budget of predicted
time, so that no session waits long for its next token. Rows enter in this order: the next token of
each session (decode), parts of prompts (prefill), and then the same of background work. Prompts may
double the time of a step, so that a running text slows down to half of its speed at most.
Background work beside other work gets a small part of the time (BACKGROUND_PART), so that it hardly
delays other work, and still ends some day.

Sessions are served by virtual time: the time predicted for the rows that were computed so far for a
gateway, within it for one of its users, and within that for a session. Whichever has the least
comes first. If sessions of several shards have work, the step is for the shard of the one that
comes first. A session that had no work, or got all that it wanted, is advanced to the virtual time
of the others, and so are a user and a gateway. None of them can therefore save up time. Only one
whose next prompt waits behind the prompt that a step ends stays behind, by SAVED_S at most.

A gateway tells its users apart by tags. These divide its share, and do not enlarge it, however many
it makes up. In the same way, the gateways of one network divide the share of one gateway: the
seconds of each count as often as there are gateways that had work lately.

Texts and prompts pay in the same currency. The whole predicted time of a step is charged to its
sessions. The fixed part is paid by the running texts, which would take a step without prompts too,
and by the prompts in a step without texts. A running text can use one row of each step only, so it
is slower the longer the steps are, and behind the gateways whose prompts make them long. While a
gateway is ahead of the others whose texts are in the step, its prompts wait, or advance by a block
in every fourth step if it has texts too. A gateway whose texts all got their row is charged as much
as the one whose texts took most, so it saves up nothing, but stays as far behind the prompts as it
was.
"""

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import fsum, inf

from .defaults import (
    ACCOUNTS,
    BACKGROUND_PART,
    DECODE_FACTOR,
    DECODE_PART,
    GROUP_GAIN,
    IDLE_STEP_S,
    NETWORK_STEPS,
    PREFILL_FACTOR,
    PREFILL_OWN_FACTOR,
    PREFILL_STEP_FACTOR,
    PREFILL_STEP_S,
    PROMPT_STEPS,
    SAVED_S,
    STEP_S,
)
from .grouping import Groups
from .kv.blocks import BLOCK
from .scheduling.costs import AdapterCosts, StepCosts
from .scheduling.shares import Gateway, GatewayNetwork, Share, User, affordable, fair, prune_users


@dataclass(slots=True)
class _Step:
    """A step of one shard that is being planned. `seconds` is its predicted time so far, of which
    `unpaid` is not charged yet."""

    costs: StepCosts
    seconds: float
    unpaid: float
    rows: int = 0
    most_text: float = 0.0  # the most seconds that one gateway's texts take
    chosen: list[tuple[Share, int]] = field(default_factory=list)
    adapters: set[AdapterCosts] = field(default_factory=set)

    def price(self, share: Share, rows: int) -> float:
        """Return the seconds that rows of a session add to the step."""
        costs, adapter = self.costs, share.adapter
        attended = costs.attended * (share.position + 0.5 * (rows + 1))
        fixed = adapter.fixed if adapter is not None and adapter not in self.adapters else 0.0
        if share.decode:
            return fixed + rows * (share.text_row + attended) + costs.alone * share.position
        pick = share.pick if rows == share.rows else 0.0  # a prompt's last part has a token
        return fixed + rows * (share.row + attended) + pick


class Scheduler:
    """Sessions of one device with their work."""

    def __init__(self) -> None:
        self.groups = Groups()
        """The sessions whose rows visit other stages too."""
        self.gateways: dict[str, Gateway] = {}
        self.networks: dict[str, GatewayNetwork] = {}
        self._ready: dict[Share, None] = {}
        self._time = 0.0  # virtual time of the gateway that was served last
        self._number = 0
        self._step = 0
        self._owed = 0.0  # seconds of background work that may enter steps with other work
        self._with_texts: set[Gateway] = set()  # gateways of the texts in the step

    @property
    def busy(self) -> bool:
        """Whether any session has work."""
        return bool(self._ready)

    @property
    def idle(self) -> bool:
        """Whether all sessions with work are background sessions."""
        return all(share.background for share in self._ready)

    def join(
        self,
        owner: str,
        costs: StepCosts,
        *,
        user: bytes = b"",
        network: str = "",
        background: bool = False,
        adapter: AdapterCosts | None = None,
    ) -> Share:
        """Add a session of the gateway `owner`, for its user with the tag `user`, on the shard that
        has these costs.

        `network` is where the gateway is; "" stands for a network of its own. Background sessions
        come after all others. `adapter` are the costs of the session's adapter.
        """
        gateway = self.gateways.get(owner)
        if gateway is None:
            self._prune()
            gateway = self.gateways[owner] = Gateway(GatewayNetwork(), self._next(), self._time)
        if network and not gateway.shares:  # it may have moved since its last session
            gateway.network = self.networks.setdefault(network, GatewayNetwork())
        found = gateway.users.get(user)
        if found is None:
            prune_users(gateway)
            found = gateway.users[user] = User(gateway, self._next(), gateway.served)
        gateway.shares += 1
        found.shares += 1
        row = costs.row + (adapter.row if adapter is not None else 0.0)
        return Share(found, costs, background, adapter, row, row + costs.chosen)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def leave(self, share: Share) -> None:
        """Remove a session."""
        self.rest(share)
        self.groups.gone(share)
        share.user.shares -= 1
        share.user.gateway.shares -= 1

    def want(
        self, share: Share, rows: int, position: int, *, decode: bool, more: bool = False
    ) -> None:
        """Record that a session needs `rows` rows from `position` on.

        `more` says that other work of the session waits behind these rows.
        """
        share.rows, share.position, share.decode, share.more = rows, position, decode, more
        if share in self._ready:
            return
        user, gateway = share.user, share.user.gateway
        if not gateway.ready:
            gateway.time = max(gateway.time, self._time)
            gateway.network.lately[gateway] = None
        if not user.ready:
            user.time = max(user.time, gateway.served)
        gateway.ready += 1
        user.ready += 1
        share.time = max(share.time, user.served)
        self._ready[share] = None

    def rest(self, share: Share) -> None:
        """Record that a session has no work."""
        if share in self._ready:
            del self._ready[share]
            share.user.ready -= 1
            share.user.gateway.ready -= 1

    def plan(self) -> list[tuple[Share, int]]:
        """Return the sessions of the next step, each with its number of rows, and charge them.

        All belong to one shard. Returns at least one row if any session has work. The charges
        (`Share.charged`) are together the predicted time of the step.
        """
        ready = self._next_shard()
        if not ready:
            return []
        kinds = {
            (background, decode): [
                share
                for share in ready
                if share.decode == decode and share.background == background
            ]
            for background in (False, True)
            for decode in (False, True)
        }
        self._step += 1
        self._with_texts.clear()
        costs = next(iter(ready)).costs
        step = _Step(costs, costs.fixed, costs.fixed)
        least = costs.fixed + costs.row + costs.chosen
        most = max(STEP_S, DECODE_FACTOR * least)
        alone = 0.0
        if not any(share.decode for share in self._ready):  # also those of other shards
            # A request that arrives during a step waits for its end, so background steps are short.
            alone = max(IDLE_STEP_S if self.idle else PREFILL_STEP_S, PREFILL_STEP_FACTOR * least)
        for background in (False, True):
            prefill, decode = kinds[background, False], kinds[background, True]
            if background and step.chosen:
                self._take_beside(step, prefill, decode)
                break
            self._take_decode(step, decode, most * DECODE_PART if prefill else most)
            budget = max(STEP_S, self._prefill_factor() * max(least, step.seconds), alone)
            if decode and not step.most_text:
                step.most_text = max(
                    [each.time - each.before for each in self._with_texts], default=0.0
                )
            if prefill:
                self._take_prefill(step, prefill, budget)
        self._catch_up(step)
        return step.chosen

    def _prefill_factor(self) -> float:
        """Return the budget of a step with prompts, as a multiple of the time without them.

        Beside texts of others, a gateway with one prompt must be able to get half of the time. If
        there is only one gateway, its texts keep more of their pace.
        """
        gateway = next(iter(self._ready)).user.gateway
        return PREFILL_OWN_FACTOR if gateway.ready == len(self._ready) else PREFILL_FACTOR

    def _next_shard(self) -> Collection[Share]:
        """Return the sessions with work of one shard: that of the session that comes first."""
        costs = {share.costs for share in self._ready}
        if len(costs) < 2:
            return self._ready
        urgent = [share for share in self._ready if not share.background]
        first = next(fair(urgent or self._ready))
        return [share for share in self._ready if share.costs is first.costs]

    def _take_beside(
        self, step: _Step, prefill: Collection[Share], decode: Collection[Share]
    ) -> None:
        """Add background rows to a step with other rows, as long as their part of the time
        allows. What they have not used counts for later steps, up to a block of a prompt."""
        if not prefill and not decode:
            return
        costs, before = step.costs, step.seconds
        block = BLOCK * costs.row + costs.chosen
        self._owed = min(self._owed + BACKGROUND_PART * before, costs.fixed + block)
        budget = before + self._owed
        self._take_decode(step, decode, budget)
        if prefill and budget - step.seconds >= block:
            self._take_prefill(step, prefill, budget)
        self._owed -= step.seconds - before

    def _catch_up(self, step: _Step) -> None:
        """Advance the virtual time of sessions, users and gateways that got all that they wanted.

        Without this, a gateway that asks for little would save up time. A gateway that has more
        prompts waiting stays behind, but by SAVED_S at most.
        """
        content: dict[User, int] = {}
        behind: set[Gateway] = set()
        for share, rows in step.chosen:
            if rows == share.rows:
                user = share.user
                waits = share.more and not share.decode
                if waits:
                    behind.add(user.gateway)
                share.time = max(share.time, user.served - SAVED_S * waits)
                content[user] = content.get(user, 0) + 1
        gateways: dict[Gateway, int] = {}
        for user, sessions in content.items():
            gateway = user.gateway
            if sessions == user.ready:
                user.time = max(user.time, gateway.served - SAVED_S * (gateway in behind))
            gateways[gateway] = gateways.get(gateway, 0) + sessions
        for gateway, sessions in gateways.items():
            if sessions == gateway.ready:
                charged = gateway.time - gateway.before
                less = step.most_text - charged if gateway in self._with_texts else inf
                self._satisfied(gateway, 0.0 if gateway in behind else less)

    def _satisfied(self, gateway: Gateway, less: float) -> None:
        """Advance a gateway that got all that it wanted in a step, by `less` seconds at most."""
        if gateway.time < self._time - SAVED_S:
            gateway.time = self._time - SAVED_S
        if gateway.time < self._time:
            gateway.time = min(self._time, gateway.time + max(0.0, less))

    def _take_decode(self, step: _Step, shares: Collection[Share], budget: float) -> None:
        """Add the rows of as many sessions as the budget allows. One whose drafts do not fit gets
        one row."""
        if not shares:
            return
        adapters = {share.adapter for share in shares if share.adapter is not None}
        adapters -= step.adapters
        pair, alone = step.costs.attended, step.costs.alone
        needs = [
            share.text_row + pair + (pair + alone) * share.position
            if (rows := share.rows) == 1
            else rows * (share.text_row + pair * (share.position + 0.5 * (rows + 1)))
            + alone * share.position
            for share in shares
        ]
        fixed = fsum(adapter.fixed for adapter in adapters)
        rows = sum([share.rows for share in shares])
        sessions = self._most(step.costs, shares)
        fits = step.rows + rows <= step.costs.most_rows and len(shares) <= sessions
        if step.seconds + sum(needs) + fixed <= budget and fits:
            step.adapters |= adapters
            step.rows += rows
            self._take_all(step, shares, needs, fixed)
            return
        first = len(step.chosen)
        for share in fair(shares):
            rows = share.rows
            if rows > 1 and not self._fits(step, share, rows, budget):
                rows = 1
            full = len(step.chosen) - first >= sessions
            if step.chosen and (full or not self._fits(step, share, rows, budget)):
                break
            self._add(step, share, rows, step.price(share, rows))
        taken = len(step.chosen) - first
        self._pay(step, first, lambda _share: 1 / taken)

    @staticmethod
    def _fits(step: _Step, share: Share, rows: int, budget: float) -> bool:
        """Return whether rows of a session fit into a step."""
        within = step.rows + rows <= step.costs.most_rows
        return within and step.seconds + step.price(share, rows) <= budget

    def _most(self, costs: StepCosts, shares: Collection[Share]) -> int:
        """Return how many running texts a step may have, so that the sessions that travel
        through a chain visit its stages in groups.

        A step of fewer texts must be faster by more than a small part, or groups have no use.
        """
        if self.groups.count < 2:
            return len(shares)
        travelling = [share for share in shares if share in self.groups]
        later = len(travelling) - self.groups.most()
        if later <= 0:
            return len(shares)
        pair = costs.attended + costs.alone
        row = sum(share.text_row + pair * share.position for share in travelling)
        if row / len(travelling) * later < GROUP_GAIN * costs.fixed:
            return len(shares)
        return len(shares) - later

    def _take_all(
        self, step: _Step, shares: Collection[Share], needs: Sequence[float], fixed: float
    ) -> None:
        """Add all rows of each session. `needs` has the seconds of each session, `fixed` those of
        their adapters."""
        part = (step.unpaid + fixed) / len(shares)
        for share, seconds in zip(shares, needs, strict=True):
            self._charge(share, part + seconds)
        step.unpaid = 0.0
        step.seconds += sum(needs) + fixed
        step.chosen += [(share, share.rows) for share in shares]

    def _take_prefill(self, step: _Step, shares: Collection[Share], budget: float) -> None:
        """Add parts of prompts as the budget allows, and at least a small one of the first prompt.

        Parts end at the end of a block, or beside texts where the costs say, except the last part
        of a prompt. They are rounded up if the gateway stays behind the others' texts, else it
        would never get as much as they.
        """
        most = step.costs.most_rows
        start, first = len(step.chosen), not any(not share.decode for share, _ in step.chosen)
        texts, least = self._with_texts, self._text_times()
        part = step.costs.part if texts else BLOCK
        for share in fair(shares):
            gateway = share.user.gateway
            behind = least[gateway in texts] - gateway.time
            room = min(most - step.rows, share.rows)
            rows = min(room, affordable(share, budget - step.seconds))
            if behind < 0:
                waits = self._step < gateway.prompted + PROMPT_STEPS
                if gateway not in texts or waits or not first:
                    continue
                rows, part = 0, BLOCK
            if rows < share.rows:
                rows = max(0, rows - (share.position + rows) % part)
                more = min(rows + part, room)
                if step.price(share, more) * gateway.weight <= behind < inf:
                    rows = more - (share.position + more) % part * (more < share.rows)
            if rows <= 0 and first:
                rows = min(share.rows, part - share.position % part)
            if rows <= 0 or step.rows + rows > max(most, BLOCK):
                break
            self._add(step, share, rows, step.price(share, rows))
            gateway.prompted, first = self._step, False
        total = sum(share.charged for share, _ in step.chosen[start:])
        taken = len(step.chosen) - start
        self._pay(step, start, lambda share: share.charged / total if total > 0 else 1 / taken)

    def _text_times(self) -> tuple[float, float]:
        """Return the virtual times that a gateway's may not exceed if its prompts are to enter the
        step: those of the gateways with texts in the step, the largest and the second largest.

        The second one is for these gateways themselves.
        """
        times = heapq.nlargest(2, [gateway.time for gateway in self._with_texts])
        return (*times, inf, inf)[0], (*times, inf, inf)[1]

    def _add(self, step: _Step, share: Share, rows: int, seconds: float) -> None:
        """Add rows to a step and charge them."""
        self._charge(share, seconds)
        if share.adapter is not None:
            step.adapters.add(share.adapter)
        step.seconds += seconds
        step.rows += rows
        step.chosen.append((share, rows))

    def _charge(self, share: Share, seconds: float) -> None:
        """Add predicted time of a step to virtual times."""
        user = share.user
        gateway = user.gateway
        if gateway.step != self._step:
            gateway.step, gateway.before = self._step, gateway.time
            gateway.weight = gateway.network.weight(self._step - NETWORK_STEPS)
            if share.decode:
                self._with_texts.add(gateway)
        if gateway.time > self._time:
            self._time = gateway.time
        if user.time > gateway.served:
            gateway.served = user.time
        if share.time > user.served:
            user.served = share.time
        share.charged = seconds
        share.time += seconds
        user.time += seconds
        gateway.time += seconds * gateway.weight

    @staticmethod
    def _pay(step: _Step, start: int, part: Callable[[Share], float]) -> None:
        """Charge the step's fixed time to the sessions that were chosen from the place `start` on.

        `part` returns the part that a session pays.
        """
        if not step.unpaid or start == len(step.chosen):
            return
        for share, _ in step.chosen[start:]:
            seconds = step.unpaid * part(share)
            share.charged += seconds
            share.time += seconds
            share.user.time += seconds
            share.user.gateway.time += seconds * share.user.gateway.weight
        step.unpaid = 0.0

    def _prune(self) -> None:
        """Remove gateways without sessions if there are too many."""
        if len(self.gateways) >= ACCOUNTS:
            self.gateways = {
                owner: gateway for owner, gateway in self.gateways.items() if gateway.shares
            }
            used = {gateway.network for gateway in self.gateways.values()}
            self.networks = {name: each for name, each in self.networks.items() if each in used}
