"""Adapters of the sessions at a stage: fetched and loaded before a session opens, within limits."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.rates import Rate, Rates
from ..defaults import (
    ADAPTER_LOADS,
    ADAPTER_WAITS,
    ADAPTER_WAITS_OF_ONE,
    ADAPTER_WAITS_UNPROVEN,
    ADAPTERS_ASKED,
    ADAPTERS_PROVEN,
)
from ..engine.adapters import LoadAdapter
from ..engine.errors import EngineError
from ..engine.interface import Engine, EngineEvent, SessionTerms
from ..errors import SessionError
from ..placement.shard import ShardProperties
from .serving.stagesession import StageSession

_DAMAGED = ("digest-mismatch", "bad-tensor")  # codes of an engine that cannot read a chunk


class AdapterSource(Protocol):
    """Source of adapters for a stage."""

    async def for_shard(self, root: str, held: ShardProperties, gateway: PeerId) -> LoadAdapter:
        """Fetch what a shard needs of an adapter for a session of a gateway, and return the command
        that loads it.

        Raises SessionError `no-adapter` or `bad-adapter`.
        """
        ...

    async def drop_damaged(self, adapter: LoadAdapter) -> None:
        """Delete the damaged chunks of an adapter from the disk, so that they are fetched again."""
        ...


class AdapterWaits:
    """Places for sessions that wait for an adapter. This node's own gateway (`own`) needs none.

    An adapter that does not exist takes 15 s until it is given up, and identities cost nothing.
    Therefore, gateways of which no adapter was ever loaded here have only some of the places.
    """

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self.waiting: Counter[PeerId] = Counter()
        self.proven: OrderedDict[PeerId, None] = OrderedDict()

    @contextmanager
    def place(self, gateway: PeerId) -> Iterator[None]:
        """Occupy a place for a session of a gateway until the block ends.

        Raises SessionError `busy` if there is none.
        """
        if gateway != self._own:
            unproven = sum(n for peer, n in self.waiting.items() if peer not in self.proven)
            full = self.waiting.total() >= ADAPTER_WAITS
            if gateway not in self.proven:
                full = full or unproven >= ADAPTER_WAITS_UNPROVEN
            if full or self.waiting[gateway] >= ADAPTER_WAITS_OF_ONE:
                raise SessionError("busy", "too many sessions wait for adapters at this stage")
            self.waiting[gateway] += 1
        try:
            yield
        finally:
            if gateway != self._own:
                self.waiting[gateway] -= 1
                if not self.waiting[gateway]:
                    del self.waiting[gateway]

    def loaded(self, gateway: PeerId) -> None:
        """Note that an adapter of a gateway was loaded."""
        self.proven[gateway] = None
        self.proven.move_to_end(gateway)
        if len(self.proven) > ADAPTERS_PROVEN:
            self.proven.popitem(last=False)


class StageAdapters:
    """Opening of sessions in the engine, with their adapters. Without a `source`, sessions have
    none."""

    def __init__(self, host: Host, own: PeerId, source: AdapterSource | None = None) -> None:
        self._host = host
        self._own = own
        self._source = source
        self._asked = Rates(Rate(*ADAPTERS_ASKED))
        self._waits = AdapterWaits(own)

    async def open(
        self,
        engine: Engine,
        session: StageSession,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms,
    ) -> int:
        """Open a session in the engine, and first load its adapter if the engine lacks it.

        Returns the number of cached positions. Sessions with other adapters may have it evicted
        again before the session is open. Raises EngineError, and SessionError `busy` if the gateway
        or all of them together ask for too many adapters.
        """
        opening = session.engine_id, session.open.tokens, on_event, terms
        for _ in range(ADAPTER_LOADS if terms.adapter else 0):
            try:
                return await engine.open(*opening)
            except EngineError as error:
                if error.code != "no-adapter" or self._source is None:
                    raise
            await self._load(engine, self._source, session, terms)
        return await engine.open(*opening)

    async def _load(
        self, engine: Engine, source: AdapterSource, session: StageSession, terms: SessionTerms
    ) -> None:
        """Fetch a session's adapter, and load it into the engine."""
        gateway, now = session.gateway, self._host.now()
        with self._waits.place(gateway):
            if gateway != self._own and not self._asked.take(gateway, now):
                # The engine computes nothing while it loads one.
                raise SessionError("busy", "this stage has loaded many adapters for its gateway")
            adapter = await source.for_shard(terms.adapter, session.served.shard, gateway)
            try:
                await engine.adapt(adapter, terms.shard)
            except EngineError as error:
                if error.code not in _DAMAGED:
                    raise
                await source.drop_damaged(adapter)
            else:
                self._waits.loaded(gateway)
        session.heard = self._host.now()
