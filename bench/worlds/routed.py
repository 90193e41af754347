"""Discrete-event model of replicas and gateways that answer the requests of a trace.

The gateways decide with the daemon's own `Router`, and the replicas answer probes with the daemon's
own `StepTimes` and `CachedNames`. A replica computes in steps that the engine's own `Scheduler`
chooses, and the predicted costs of a step pass as virtual time. The model is simpler than daemons
in three ways: all links have the same round trip and no packets, a whole prompt arrives at once,
and memory is only the cache of prefixes.
"""

import heapq
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Literal

from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.scheduler import Scheduler
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.scheduling.shares import Share
from shoal.tasks.routing.affinity import NO_PREFIX, CachedNames, Prefix, ranked
from shoal.tasks.routing.beliefs import Load, Observed, Shard, Times
from shoal.tasks.routing.paths import Hop
from shoal.tasks.routing.router import GatewayView, PlannedChain, Router, Want
from shoal.tasks.routing.waiting import Pending, StepTimes
from shoal.transport.identity import PeerId

Policy = Literal["shoal", "all-seeing", "least-loaded", "gossip", "affinity"]
POLICIES: Final[tuple[Policy, ...]] = (
    "shoal",
    "all-seeing",
    "least-loaded",
    "gossip",
    "affinity",
)
BLOCK: Final = 512  # positions of one block of the trace
ROOT: Final = "ab" * 32
LAYERS: Final = 32
SPAN: Final = 512  # rows of a prompt that are at the engine at once


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the trace. `at` is in seconds, `rows` and `tokens` in positions."""

    at: float
    rows: int
    tokens: int
    blocks: tuple[int, ...]
    names: bytes = b""
    prefix: Prefix = NO_PREFIX


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of one model and the gateways that use them.

    `cached` is the number of positions that a replica caches. If `shared`, a prefix that one
    gateway's request left is found by the others, as in a group with a common secret.
    """

    costs: StepCosts
    replicas: int = 8
    gateways: int = 8
    round_trip: float = 0.04
    cached: int = 1_000_000
    shared: bool = True
    liars: int = 0  # replicas that say they have no load, and claim a thousand times their speed


def read_trace(path: Path) -> list[Request]:
    """Return the requests of a Mooncake trace, in its own time."""
    lines = map(json.loads, path.read_text().splitlines())
    return [
        Request(
            line["timestamp"] / 1e3,
            line["input_length"],
            max(1, line["output_length"]),
            tuple(line["hash_ids"]),
        )
        for line in lines
    ]


def arrivals(trace: Sequence[Request], count: int, rate: float, seed: int) -> list[Request]:
    """Return `count` requests in a row at `rate` requests per second.

    Times are spread inside the trace's bins of 3 s, and the first request depends on the seed.
    """
    random = Random(seed)
    first = random.randrange(max(1, len(trace) - count + 1))
    some = [(each.at + 3.0 * random.random(), each) for each in trace[first : first + count]]
    some.sort(key=lambda pair: pair[0])
    start, end = some[0][0], some[-1][0]
    scale = (len(some) / rate) / max(end - start, 1e-9)
    return [_named(replace(each, at=(at - start) * scale)) for at, each in some]


def _named(request: Request) -> Request:
    """Return a request with names of 16 positions each. Equal blocks have equal names, since those
    of the trace depend on all blocks before them."""
    each = BLOCK // 16
    parts = (block * each + part for block in request.blocks for part in range(each))
    names = b"".join(part.to_bytes(16) for part in parts)[: request.rows // 16 * 16]
    return replace(request, names=names, prefix=Prefix.of(names))


@dataclass(slots=True, eq=False)
class _Running:
    """A request at a replica."""

    request: Request
    gateway: str
    share: Share
    left: int  # rows of the prompt
    position: int
    tokens: int
    done: Callable[[float, bool], None]  # called with the time, and whether it is the last token
    rows: int = 0  # that it wanted last


class Replica:
    """A replica: the scheduler, a cache of prefixes, and what the stage says of itself."""

    def __init__(self, number: int, fleet: Fleet, world: "World") -> None:
        self.hop = Hop(PeerId(f"replica-{number}"), Parts(True, 0, LAYERS, True), "float32")
        self._fleet = fleet
        self._world = world
        self._scheduler = Scheduler()
        self._running: dict[Share, _Running] = {}
        self._blocks: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._names = CachedNames(fleet.cached)
        self._busy = False
        self.queued_until: float | None = None  # only while the world warms up
        self.lies = number < fleet.liars
        costs = fleet.costs
        self.times = StepTimes(costs.row, costs.fixed + costs.row)

    def _owner(self, gateway: str) -> str:
        return "group" if self._fleet.shared else gateway

    def cached(self, request: Request, gateway: str) -> int:
        """Return the positions of a prompt that are cached."""
        owner, count = self._owner(gateway), 0
        for block in request.blocks:
            if (owner, block) not in self._blocks:
                break
            count += 1
        return min(count * BLOCK, max(0, request.rows - 2))

    def said(self, request: Request, gateway: str) -> Load:
        """Return the reply to a probe."""
        if self.lies:
            return Load(0.0, request.rows)
        cached = self._names.length(self._owner(gateway), request.prefix)
        wait = self.wait(request.rows - cached, gateway)
        return Load(wait, cached, row_s=self.times.row_s)

    def wait(self, rows: int, gateway: str) -> float:
        """Return for how long a new prompt of `rows` rows waits, as the stage predicts it."""
        if self.queued_until is not None:
            return max(0.0, self.queued_until - self._world.now)
        pending = [Pending(each.gateway, each.left) for each in self._running.values() if each.left]
        texts = len(self._running) - len(pending)
        return self.times.wait(pending, texts, gateway, rows)

    def begin(
        self, request: Request, gateway: str, now: float, done: Callable[[float, bool], None]
    ) -> int:
        """Begin with a request. Return the rows of its prompt that are computed."""
        cached = self.cached(request, gateway)
        share = self._scheduler.join(gateway, self._fleet.costs)
        left = max(1, request.rows - cached)
        running = _Running(request, gateway, share, left, request.rows - left, request.tokens, done)
        self._running[share] = running
        self._names.note(self._owner(gateway), request.names)
        self._want(running)
        if not self._busy:
            self._step(now)
        return left

    def _want(self, running: _Running) -> None:
        running.rows = min(running.left, SPAN) or 1
        self._scheduler.want(
            running.share, running.rows, running.position, decode=running.left == 0
        )

    def _step(self, now: float) -> None:
        """Begin a step, if there is work."""
        chosen = self._scheduler.plan()
        self._busy = bool(chosen)
        if not chosen:
            return
        seconds = sum(share.charged for share, _ in chosen)
        self._world.at(now + seconds, lambda: self._end(chosen, now + seconds))

    def _end(self, chosen: Sequence[tuple[Share, int]], now: float) -> None:
        texts = sum(self._running[share].left == 0 for share, _ in chosen)
        for share, rows in chosen:
            running = self._running[share]
            running.position += rows
            if running.left:
                self.times.note_prompt(rows, share.charged)
                running.left -= rows
                if running.left == 0:
                    self._token(running, now)
            else:
                self.times.note_token(texts, share.charged)
                self._token(running, now)
            running.rows -= rows
            if share in self._running:
                if running.rows > 0:
                    left = running.rows
                    self._scheduler.want(share, left, running.position, decode=False)
                else:
                    self._want(running)
        self._step(now)

    def _token(self, running: _Running, now: float) -> None:
        if running.tokens == running.request.tokens:
            self.fill(running.request, running.gateway)
        running.tokens -= 1
        if running.tokens == 0:
            del self._running[running.share]
            self._scheduler.leave(running.share)
        running.done(now, running.tokens == 0)

    def queue(self, request: Request, gateway: str, now: float) -> tuple[int, float]:
        """Take a request into a simple queue: first come, first served, and half of the time is for
        texts. Return the rows that are computed, and the seconds until then."""
        rows = request.rows - self.cached(request, gateway)
        self.queued_until = max(self.queued_until or 0.0, now) + 2 * rows * self.times.row_s
        self.fill(request, gateway)
        return rows, self.queued_until - now

    def fill(self, request: Request, gateway: str) -> None:
        """Cache the prompt of a request."""
        owner = self._owner(gateway)
        self._names.note(owner, request.names)
        for block in reversed(request.blocks):  # the first one is forgotten last
            self._blocks[owner, block] = None
            self._blocks.move_to_end((owner, block))
        while len(self._blocks) > self._fleet.cached // BLOCK:
            self._blocks.popitem(last=False)


def names_of(request: Request) -> bytes:
    """Return names of 16 positions each for a prompt: what counts is that equal blocks have equal
    names."""
    each = BLOCK // 16
    return b"".join(
        (block * each + part).to_bytes(16) for block in request.blocks for part in range(each)
    )[: request.rows // 16 * 16]


def prefix_of(request: Request) -> Prefix:
    """Return the names that a gateway sends in a probe."""
    return Prefix.of(request.names)


@dataclass(slots=True)
class _Gateway:
    """A gateway with its own memory, and what it has sent since the last gossip."""

    name: str
    router: Router
    sent: list[float]


@dataclass(slots=True)
class Outcome:
    """Seconds to the first token of each request, in the order of arrival, and what was cached."""

    first: list[float] = field(default_factory=list)
    cached: int = 0
    rows: int = 0
    probes: int = 0
    most_probes: int = 0
    to_liars: list[bool] = field(default_factory=list)

    def within(self, seconds: float, warm: int) -> float:
        """Return the share of the requests after the first `warm` ones with their first token
        within `seconds`."""
        counted = self.first[warm:]
        return sum(each <= seconds for each in counted) / len(counted)


class World:
    """One run: the requests of a trace, over one fleet, by one policy."""

    def __init__(
        self, fleet: Fleet, requests: Sequence[Request], policy: Policy, seed: int
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._random = Random(seed + 1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.now = 0.0
        self.replicas = [Replica(number, fleet, self) for number in range(fleet.replicas)]
        self._hops = [replica.hop for replica in self.replicas]
        self._by_peer = {replica.hop.peer: replica for replica in self.replicas}
        self._gateways = [
            _Gateway(f"gateway-{number}", Router(), [0.0] * fleet.replicas)
            for number in range(fleet.gateways)
        ]
        self._gossip: list[list[float]] = []
        self._gossip_at = -math.inf
        self._requests = requests
        costs = fleet.costs
        honest, best = Times(costs.row, costs.fixed), Times(costs.row / 1e3, costs.fixed / 1e3)
        self._view = GatewayView(
            None,
            lambda hop: best if self._by_peer[hop.peer].lies else honest,
            lambda peer: fleet.round_trip,
        )
        self.outcome = Outcome([float("inf")] * len(requests))
        self.outcome.to_liars = [False] * len(requests)

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Call `event` at a time."""
        self._number += 1
        heapq.heappush(self._events, (time, self._number, event))

    def warm(self, requests: Sequence[Request]) -> None:
        """Fill the caches, and the memories of gateways, with earlier requests.

        To save time, replicas have simple queues for these requests, and are idle at the end.
        """
        for request in requests:
            self.now = request.at
            gateway, plan = self._gateway_of(request), None
            if self._policy == "shoal":
                want = self._want(request)
                asked = gateway.router.questions(self._view, want, self._hops, self.now)
                said = self._tell(gateway, asked, self._said(request, gateway, asked))
                plan = gateway.router.plan(self._view, want, self._hops, self.now, said)
                assert plan is not None
                gateway.router.take(plan, want.prefix, self.now)
                replica = self._by_peer[plan.chain[0].peer]
            else:
                replica = self.replicas[self._chosen(request, gateway)]
            rows, took = replica.queue(request, gateway.name, self.now)
            if plan is not None:
                observed = Observed(took, 0.0, rows)
                gateway.router.beliefs.observed(plan.stages, observed, self.now)
        for replica in self.replicas:
            replica.queued_until = None

    def run(self) -> Outcome:
        """Run until all requests are answered."""
        self._gossip_at = -math.inf
        for number, request in enumerate(self._requests):
            self.at(request.at, partial(self._arrive, number, request))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.outcome

    def _arrive(self, number: int, request: Request) -> None:
        gateway = self._gateway_of(request)
        if self._policy == "shoal":
            self._ask(number, request, gateway)
            return
        index = self._chosen(request, gateway)
        self._begin(number, request, gateway, self.replicas[index], None)

    def _gateway_of(self, request: Request) -> _Gateway:
        """Return the gateway of a request: any one if they share prefixes, else that of the
        conversation."""
        if self._fleet.shared:
            return self._random.choice(self._gateways)
        return self._gateways[Random(str(request.blocks[:2])).randrange(len(self._gateways))]

    # The project's own choice.

    def _ask(self, number: int, request: Request, gateway: _Gateway) -> None:
        want = self._want(request)
        asked = gateway.router.questions(self._view, want, self._hops, self.now)
        self.outcome.probes += len(asked)
        self.outcome.most_probes = max(self.outcome.most_probes, len(asked))
        half = self._fleet.round_trip / 2
        self.at(self.now + half, lambda: self._asked(number, request, gateway, want, asked))

    def _asked(
        self, number: int, request: Request, gateway: _Gateway, want: Want, asked: Sequence[Hop]
    ) -> None:
        said = self._said(request, gateway, asked)
        half = self._fleet.round_trip / 2

        def decide() -> None:
            replies = self._tell(gateway, asked, said)
            plan = gateway.router.plan(self._view, want, self._hops, self.now, replies)
            assert plan is not None
            gateway.router.take(plan, want.prefix, self.now)
            replica = self._by_peer[plan.chain[0].peer]
            self._begin(number, request, gateway, replica, plan)

        self.at(self.now + half, decide)

    def _want(self, request: Request) -> Want:
        session = self._random.randbytes(16)
        return Want(ROOT, LAYERS, request.rows, request.prefix, request.tokens, session)

    def _said(self, request: Request, gateway: _Gateway, asked: Sequence[Hop]) -> list[Load]:
        return [self._by_peer[hop.peer].said(request, gateway.name) for hop in asked]

    def _tell(
        self, gateway: _Gateway, asked: Sequence[Hop], said: Sequence[Load]
    ) -> dict[Shard, Load]:
        """Give a gateway the replies to its probes."""
        shards = [Shard(hop.peer, ROOT, hop.parts) for hop in asked]
        replies = dict(zip(shards, said, strict=True))
        for shard, load in replies.items():
            gateway.router.beliefs.told(shard, load, self.now)
        return replies

    def _begin(
        self,
        number: int,
        request: Request,
        gateway: _Gateway,
        replica: Replica,
        plan: PlannedChain | None,
    ) -> None:
        trip = self._fleet.round_trip
        began = self.now
        seen: list[float] = []
        rows = 0

        def arrive() -> None:  # after `session.open` and its reply
            nonlocal rows
            cached = replica.cached(request, gateway.name)
            rows = replica.begin(request, gateway.name, self.now, token)
            self.outcome.cached += cached
            self.outcome.rows += request.rows

        def token(now: float, last: bool) -> None:
            seen.append(now + trip / 2)
            if len(seen) == 1:
                self.outcome.first[number] = seen[0] - request.at
            if plan is not None and (last or len(seen) == 1):
                self._learn(gateway, plan, seen, began + trip, rows, last)

        self.outcome.to_liars[number] = replica.lies
        self.at(self.now + 1.5 * trip, arrive)

    def _learn(
        self, gateway: _Gateway, plan: PlannedChain, seen: Sequence[float], began: float, rows: int,
        last: bool,
    ) -> None:  # fmt: skip
        trip = self._fleet.round_trip
        further = len(seen) - 1
        if not last:
            observed = Observed(seen[0] - began, trip, rows)
        elif further:
            observed = Observed(0.0, 0.0, 0, (seen[-1] - seen[0]) / further, 0.0, further)
        else:
            return
        gateway.router.beliefs.observed(plan.stages, observed, self.now)

    # The others.

    def _chosen(self, request: Request, gateway: _Gateway) -> int:
        """Return the replica that another policy chooses."""
        every = list(range(len(self.replicas)))
        self._random.shuffle(every)  # no replica is preferred among equals
        if self._policy == "affinity":
            key = str(request.blocks[:2]).encode()[:64]
            return self._hops.index(
                self._by_peer[ranked(key, dict.fromkeys(self._by_peer, 1.0))[0]].hop
            )
        if self._policy == "least-loaded":
            return min(every, key=lambda i: self.replicas[i].wait(request.rows, gateway.name))
        if self._policy == "all-seeing":
            return min(every, key=lambda i: self._first(i, request, gateway))
        return self._by_gossip(request, gateway)

    def _first(self, index: int, request: Request, gateway: _Gateway) -> float:
        """Return the seconds to the first token that a replica would predict now."""
        replica = self.replicas[index]
        rows = request.rows - replica.cached(request, gateway.name)
        return replica.wait(rows, gateway.name) + rows * replica.times.row_s

    def _by_gossip(self, request: Request, gateway: _Gateway) -> int:
        """Return the best replica by what all of them said at the last full second, with what this
        gateway has sent since then. It sees what is cached at once, which favours it."""
        if self.now >= self._gossip_at + 1.0:
            self._gossip_at = self.now
            self._gossip = [
                [replica.wait(rows, "") for rows in _SIZES] for replica in self.replicas
            ]
            for each in self._gateways:
                each.sent = [0.0] * len(self.replicas)

        def first(i: int) -> float:
            replica = self.replicas[i]
            rows = request.rows - replica.cached(request, gateway.name)
            size = min(range(len(_SIZES)), key=lambda n: abs(_SIZES[n] - rows))
            return self._gossip[i][size] + gateway.sent[i] + rows * replica.times.row_s

        every = list(range(len(self.replicas)))
        self._random.shuffle(every)
        index = min(every, key=first)
        replica = self.replicas[index]
        rows = request.rows - replica.cached(request, gateway.name)
        gateway.sent[index] += rows * replica.times.row_s
        return index


_SIZES: Final = (64, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Sizes of prompts for which the gossip has waits, in rows."""
