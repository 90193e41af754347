"""Connector by which a stage gets KV from other nodes instead of computing it, and offers its own.

Two sides, as a stage schedules and its worker computes. The scheduling side (`matched`) says how
many positions of a prompt can come from elsewhere, and is worth fetching. The worker's side
(`load`) brings them into the session, chunk by chunk. `saved` offers what a session leaves behind.
Spec: docs/spec/kv.md.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import trio

from ...dht.kv.chain import Chain
from ...dht.kv.index import KvFound
from ...transport.bytestream import PathKind
from ...transport.errors import TransportError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ..costs.links import link_rates
from ..costs.rates import LinkRates
from ..costs.shardcosts import ShardCosts
from ..defaults import (
    CHUNK_HEAD,
    CHUNK_HOPE,
    CHUNK_LOOK,
    CHUNK_LOOK_SHARE,
    CHUNK_LOOK_UP,
    CHUNK_NAP,
    CHUNK_RATE_AGE,
    CHUNK_SHY,
    CHUNK_TIMEOUT,
    CHUNK_TRIES,
    CHUNK_WORTH,
)
from ..engine.interface import NAME_BYTES, Engine, KvForm, SessionId
from ..engine.kv.parts import KvShape
from .beside import BesideFetch
from .choice import compute_seconds, fetch_seconds, worthwhile
from .fetching import ChunkFetch, FetchPlan
from .naming import CHUNK, CHUNK_BLOCKS, chunk_names
from .store import KvOrigin, Layers, SharedChunks

_RATES: Final = 256  # providers whose rate is remembered, and gateways that distrust strangers
_NEAR: Final = (PathKind.LOOPBACK.value, PathKind.LAN.value)  # paths whose usual rate is known


class Index(Protocol):
    """The part of a `KvIndex` that the connector uses."""

    async def longest(
        self,
        chain: Chain,
        layers: Layers,
        *,
        likely: Sequence[PeerId] = ...,
        look_up: bool = ...,
        timeout: float = ...,
    ) -> KvFound: ...
    def refute(self, peer: PeerId) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeFunctions:
    """Functions of the node that the connector uses.

    `connect` opens a link or raises TransportError. `replicas(root, layers, seconds)` returns
    linked members that serve these layers of a model and whose round trip is shorter.
    `trusts(peer)` says whether a peer's KV is believed unseen. `guard` surrounds fetches beside
    computing.
    """

    connect: Callable[[PeerId], Awaitable[Link]]
    replicas: Callable[[str, Layers, float], Sequence[PeerId]]
    trusts: Callable[[PeerId], bool]
    guard: Guard = field(default_factory=Guard)


@dataclass(frozen=True, slots=True)
class WantingSession:
    """A session that may use KV of other nodes.

    `names` are those of the prompt's full blocks. `cached` positions are here. `exact` sessions
    take exact copies of their own class only. `costs` are those of computing here.
    """

    session: SessionId
    origin: KvOrigin
    names: bytes = field(repr=False)
    cached: int
    exact: bool
    shape: KvShape
    costs: ShardCosts
    asked: Callable[[PeerId], None] = lambda peer: None
    """Called with each provider before it is used, if the session computes meanwhile."""
    held: Callable[[int, int], None] | None = None
    """Called when a session of a chain, which computes meanwhile, has KV of more positions: the
    first one, and the one after the last."""

    @property
    def chunks(self) -> int:
        """The number of full chunks of the prompt that are not here."""
        return len(self.names) // (NAME_BYTES * CHUNK_BLOCKS) - self.cached // CHUNK

    @property
    def form(self) -> KvForm:
        """The form in which its parts travel."""
        return "exact" if self.exact else "int8"


@dataclass(frozen=True, slots=True)
class Outside:
    """A provider of the chunks below `chunks`, and the link to it."""

    link: Link
    chunks: int


class ChunkConnector:
    """KV of other nodes for the sessions of one stage, and its own KV for them."""

    def __init__(
        self,
        host: Host,
        own: PeerId,
        engine: Engine,
        index: Index,
        store: SharedChunks,
        around: NodeFunctions,
    ) -> None:
        self._host = host
        self._own = own
        self.engine = engine
        self._index = index
        self._store = store
        self._around = around
        # By provider: bytes/s of the last fetch, and when that was.
        self.rates: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()
        self.shy_until: OrderedDict[PeerId, float] = OrderedDict()
        """The time (seconds) until which sessions of a gateway take nothing from strangers."""
        self.fetched_bytes = 0
        """Bytes of KV that were fetched from peers since the start."""

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]:
        """Fetch what is worth it, and return the session's length and the provider that the last
        positions are from.

        Never fails: what cannot be fetched is computed.
        """
        deadline = trio.current_time() + CHUNK_TIMEOUT
        for outside in (await self.matched(wanted))[:CHUNK_TRIES]:
            got = await self.load(wanted, outside, deadline)
            if got > wanted.cached:
                return got, outside.link.peer
        return wanted.cached, None

    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None:
        """Fetch for a session that computes meanwhile, until both meet. Sets `ready` when it may
        begin, which is soon in any case.

        Never fails, and delays nothing but the beginning.
        """
        fetches = list[BesideFetch]()
        self.engine.expect_kv(wanted.session, True)
        try:
            with self._around.guard.around(wanted.origin.owner):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._begin, wanted, ready, fetches)
                    for outside in (await self.matched(wanted))[:CHUNK_TRIES]:
                        if await self._load_beside(wanted, outside, ready, fetches):
                            break
                    nursery.cancel_scope.cancel()
        finally:
            self.engine.expect_kv(wanted.session, False)
            ready.set()

    def keep(self, session: SessionId) -> None:
        """Have a session of a chain keep what it has, although it may compute it again."""
        self.engine.expect_kv(session, True)
        self.engine.expect_kv(session, False)

    async def _begin(
        self, wanted: WantingSession, ready: trio.Event, fetches: Sequence[BesideFetch]
    ) -> None:
        """Set `ready` when waiting for the fetches is not worth it any more."""
        stop = wanted.cached + wanted.chunks * CHUNK
        seconds = compute_seconds(wanted.costs, wanted.cached, stop)
        began = now = trio.current_time()
        latest = began + CHUNK_TIMEOUT  # the gateway does not wait longer
        until = min(began + CHUNK_HEAD * seconds, latest)
        while until > now:
            await trio.sleep_until(max(until, now + CHUNK_NAP))
            now = trio.current_time()
            patience = sum(fetch.patience_s(seconds) for fetch in fetches)
            until = min(began + CHUNK_HEAD * seconds + patience, latest)
        ready.set()
        for fetch in fetches:
            fetch.begin()

    async def _load_beside(
        self,
        wanted: WantingSession,
        outside: Outside,
        ready: trio.Event,
        fetches: list[BesideFetch],
    ) -> bool:
        """Fetch from one provider. Return whether the engine got anything of it."""
        plan, link = self._worthwhile_beside(wanted, outside), outside.link
        if plan is None:
            return False
        wanted.asked(link.peer)
        self.engine.expect_kv(wanted.session, True)  # forget incomplete runs of others
        near = link.status.path in _NEAR
        fetch = BesideFetch(
            self._host, self._own, link, self.engine, plan, near=near, held=wanted.held
        )
        if ready.is_set():
            fetch.begin()
        fetches.append(fetch)
        try:
            await fetch.run()
        finally:
            self._note(link.peer, fetch)
        return fetch.handed

    def _worthwhile_beside(self, wanted: WantingSession, outside: Outside) -> FetchPlan | None:
        """Return the plan to fetch all that a provider has, or None if not even the last chunk
        would arrive before the session has computed what is before it."""
        plan, link = self._whole(wanted, outside), self._link(outside.link)
        before = compute_seconds(wanted.costs, plan.start, plan.stop - CHUNK)
        if link.rate and fetch_seconds(link, plan.chunk_bytes) > before:
            return None
        return plan

    # The scheduling side.

    async def matched(self, wanted: WantingSession) -> list[Outside]:
        """Return the providers of more positions than are here, the best first.

        Looks no longer than a small part of the time in which they would be computed.
        """
        chain = wanted.origin.chain(wanted.names)
        first = wanted.cached // CHUNK
        if chain is None or len(chain) <= first:
            return []
        seconds = compute_seconds(wanted.costs, wanted.cached, len(chain) * CHUNK)
        if seconds < CHUNK_WORTH:
            return []
        limit = min(CHUNK_LOOK, CHUNK_LOOK_SHARE * seconds)
        likely = self._around.replicas(wanted.origin.root, wanted.origin.layers, limit)
        look_up = limit >= CHUNK_LOOK_UP
        found: list[Outside] = []
        if not (likely or look_up):
            return found
        with trio.move_on_after(limit):
            known = await self._index.longest(
                chain, wanted.origin.layers, likely=likely, look_up=look_up, timeout=limit
            )
            for each in known.providers:
                if each.chunks > first and self._may_ask(each.peer, wanted.origin.owner):
                    try:
                        link = await self._around.connect(each.peer)
                    except TransportError:
                        continue
                    found.append(Outside(link, each.chunks))
        return found

    def _may_ask(self, peer: PeerId, gateway: PeerId) -> bool:
        """Return whether a provider may be used for a gateway: after wrong values, only trusted
        ones."""
        if peer == self._own:
            return False
        shy_until = self.shy_until.get(gateway, 0.0)
        return self._host.now() >= shy_until or self._around.trusts(peer)

    def _whole(self, wanted: WantingSession, outside: Outside) -> FetchPlan:
        """Return the plan to fetch all that a provider has."""
        chain = wanted.origin.chain(wanted.names)
        assert chain is not None  # providers of a chain were found
        return FetchPlan(
            session=wanted.session,
            names=tuple(chunk_names(wanted.names)),
            tags=chain.tags,
            start=wanted.cached,
            last=outside.chunks,
            layers=wanted.origin.layers,
            form=wanted.form,
            shape=wanted.shape,
            costs=wanted.costs,
            doubted=not self._around.trusts(outside.link.peer),
        )

    def _plan(self, wanted: WantingSession, outside: Outside) -> FetchPlan | None:
        """Return what to fetch from a provider, or None if computing everything is faster."""
        plan, first = self._whole(wanted, outside), wanted.cached // CHUNK
        most = outside.chunks - first
        link = self._link(outside.link)
        choice = worthwhile(wanted.costs, link, plan.chunk_bytes, first, most)
        if not choice.chunks:
            return None
        patience = CHUNK_HOPE * (choice.compute_s - choice.fetch_s) if link.rate else 0.0
        return replace(plan, last=first + choice.chunks, patience=patience)

    # The worker's side.

    async def load(self, wanted: WantingSession, outside: Outside, deadline: float) -> int:
        """Bring the positions that are worth fetching into the session until `deadline` (seconds of
        trio's clock), and return its length."""
        plan = self._plan(wanted, outside)
        if plan is None:
            return wanted.cached
        peer = outside.link.peer
        fetch = ChunkFetch(self._host, self._own, outside.link, self.engine, plan)
        try:
            with trio.move_on_at(deadline):
                await fetch.run()
        finally:
            self._note(peer, fetch)
        return max(wanted.cached, fetch.length)

    def _note(self, peer: PeerId, fetch: ChunkFetch) -> None:
        """Remember the rate of a provider, and what it did wrong."""
        self.fetched_bytes += fetch.bytes
        if fetch.bytes or fetch.ending == "slow":
            self.rates[peer] = max(fetch.rate, 1.0), self._host.now()
            self.rates.move_to_end(peer)
            while len(self.rates) > _RATES:
                self.rates.popitem(last=False)
        if fetch.ending == "liar":
            self._index.refute(peer)

    def _link(self, link: Link) -> LinkRates:
        """Return the rates of a link: its round trip, and the rate of the last fetch over it.

        Without one lately, it is the usual one if the peer is near, and else unlimited: the fetch
        itself finds out.
        """
        usual = link_rates(link.status)
        rate, at = self.rates.get(link.peer, (0.0, 0.0))
        if self._host.now() >= at + CHUNK_RATE_AGE:
            rate = usual.rate if link.status.path in _NEAR else 0.0
        return replace(usual, rate=rate, loss=0.0)

    def refute(self, peer: PeerId, gateway: PeerId) -> None:
        """Distrust strangers for a while, because values of the provider `peer` were not those that
        were computed here for a session of a gateway.

        Only sessions of that gateway do so, and only this node's own gateway refutes the provider:
        another one may have given names that are not those of its tokens.
        """
        if gateway == self._own:
            self._index.refute(peer)
        self.shy_until[gateway] = self._host.now() + CHUNK_SHY
        self.shy_until.move_to_end(gateway)
        while len(self.shy_until) > _RATES:
            self.shy_until.popitem(last=False)

    def saved(self, origin: KvOrigin, names: bytes) -> None:
        """Offer the full chunks of a session that has ended, whose blocks have these names."""
        self._store.add(origin, names)
