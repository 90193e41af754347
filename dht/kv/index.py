"""`KvIndex`: finds the peers that have the KV of the longest prefix of a prompt.

The records about all chains with the same first chunk are stored under one key, so one look-up
finds the providers. Each provider is then asked how long a prefix of the chain it has (`kv.have`).
Its reply is a claim. A peer that turns out not to have what it claimed is not asked again for a
while. Spec: docs/spec/kv.md.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import trio
from msgspec import Meta

from ...transport.decoding import typed
from ...transport.errors import TransportError, Undecodable
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Answer, Call, Handler, Refusal, Reply
from ...transport.link.link import Link
from ...transport.message import Message
from ...transport.rates import Rate, Rates
from .. import defaults
from ..finding import FindingResult
from ..lookup.foundrecords import FoundRecord
from ..records.key import Key
from ..records.record import Body, KvBody
from . import search as kvsearch
from .chain import Chain
from .local import Layers, LocalChains
from .search import SHORT, PrefixSearch

_BAD_REQUEST: Final = Refusal("bad-request", "expected layers and prefixes of tags of chunks")
_Layer = Annotated[int, Meta(ge=0, le=defaults.LAYERS_LIMIT)]


class Switchboard(Protocol):
    """The part of an `Endpoint` that the index uses."""

    peer: PeerId

    def handle(self, method: str, handler: Handler) -> None: ...


class IndexRecords(Protocol):
    """The part of a `Dht` that the index uses."""

    async def find(
        self,
        key: Key,
        *,
        most: int = ...,
        enough: int = ...,
        timeout: float = ...,
        kinds: tuple[str, ...] = ...,
    ) -> FindingResult: ...
    def publish(self, body: Body, *, ttl: int = ..., lasting: bool = ...) -> None: ...
    def withdraw(self, body: Body) -> None: ...


class _AskLayers(Message, frozen=True):
    """Header of `kv.have`: the layers (start, stop) that the asker needs."""

    layers: tuple[_Layer, _Layer]

    def check(self) -> None:
        """Raise ValueError if the range of layers is empty."""
        if self.layers[0] >= self.layers[1]:
            raise ValueError("`layers` must be a start and a stop")


@dataclass(frozen=True, slots=True)
class KvProvider:
    """A peer that claims to have the first `chunks` chunks of a chain."""

    peer: PeerId
    chunks: int


@dataclass(frozen=True, slots=True)
class KvFound:
    """Providers, longest prefix first, and the result of the look-up that found them.

    The look-up is None if a provider of the whole chain was found before it ended. `rounds` is the
    largest number of replies that one provider gave.
    """

    providers: tuple[KvProvider, ...]
    lookup: FindingResult | None
    rounds: int


class KvIndex:
    """KV index of a node. `connect` opens a link for a few requests, or raises TransportError."""

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        records: IndexRecords,
        *,
        connect: Callable[[PeerId], Awaitable[Link]],
        held: LocalChains | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._own = endpoint.peer
        self._records = records
        self._connect = connect
        self._held = held or LocalChains()
        self._rates = Rates(Rate(*defaults.KV_RATE), Rate(*defaults.KV_RATE_ALL))
        self._said: dict[Key, dict[str, KvBody]] = {}
        self._unsaid: dict[Key, None] = {}
        self._news = trio.Event()
        self.liars: OrderedDict[PeerId, float] = OrderedDict()  # peer -> end of the distrust
        endpoint.handle("kv.have", self._on_have)

    # KV on this node.

    def announce(self, chain: Chain, layers: Layers, *, publish: bool = True) -> None:
        """Announce that this node has these layers of a chain's chunks, and has just used them.

        Unless `publish`, only peers that ask this node learn it.
        """
        changed = self._held.add(chain, layers)
        if publish:
            self._say(changed)

    def withdraw(self, chain: Chain) -> None:
        """Withdraw a chain. Chunks that it shares with other chains stay announced."""
        self._say(self._held.remove(chain))

    def _say(self, keys: set[Key]) -> None:
        """Schedule the records of these keys to be published again."""
        self._unsaid |= dict.fromkeys(sorted(keys))
        self._news.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish the records of changed keys, `KV_SAID` keys at a time, until cancelled."""
        task_status.started()
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._unsaid:
                for key in list(self._unsaid)[: defaults.KV_SAID]:
                    del self._unsaid[key]
                    self._publish(key)
                await trio.sleep(defaults.KV_SAY_PAUSE)

    def _publish(self, key: Key) -> None:
        """Publish the records of a key, and withdraw those that are not true any more."""
        wanted = {body.slot: body for body in self._held.bodies(key)}
        for slot, body in self._said.pop(key, {}).items():
            if slot not in wanted:
                self._records.withdraw(body)
        for body in wanted.values():
            self._records.publish(body, ttl=defaults.KV_TTL, lasting=False)
        if wanted:
            self._said[key] = wanted

    def _on_have(self, call: Call) -> Answer:
        """Answer `kv.have`: for each tag, a proof that this node has the chunk, or zeros."""
        asked = bytes(call.payload)
        if len(asked) % SHORT or not 0 < len(asked) <= SHORT * defaults.KV_ASKED:
            return _BAD_REQUEST
        try:
            layers = typed(_AskLayers, call.header).layers
        except Undecodable:
            return _BAD_REQUEST
        if not self._rates.take(call.peer, self._host.now()):
            return Refusal("busy", "too many `kv.have` calls")
        shorts = [asked[at : at + SHORT] for at in range(0, len(asked), SHORT)]
        tags = [self._held.tag(short, layers) for short in shorts]
        return Reply({}, kvsearch.answer(asked, tags))

    # KV on other nodes.

    async def longest(
        self,
        chain: Chain,
        layers: Layers,
        *,
        likely: Sequence[PeerId] = (),
        look_up: bool = True,
        timeout: float = defaults.KV_FIND,
    ) -> KvFound:
        """Find the providers of these layers of the longest prefix of a chain, this node included.

        The look-up and the requests may take `timeout` seconds each. Peers that have no chunk of
        the chain are left out. The peers in `likely` are asked before the look-up has ended, and it
        is cut short if one of them has the whole chain. Without `look_up`, only they are asked.
        """
        asking = [peer for peer in likely if peer != self._own and not self._lied(peer)]
        searches = {
            peer: PrefixSearch(chain.tags, len(chain)) for peer in asking[: defaults.KV_PROVIDERS]
        }
        found: FindingResult | None = None
        with trio.move_on_after(2 * timeout) as scope:
            async with trio.open_nursery() as nursery:

                def ask(peer: PeerId) -> None:
                    search = searches[peer]
                    self._guard.start(nursery, peer, self._ask, peer, search, layers, scope)

                for peer in searches:
                    ask(peer)
                found = await self._look_up(chain, timeout) if look_up else None
                scope.deadline = trio.current_time() + timeout
                for peer, most in self._claims(found.records if found else (), chain, layers):
                    if peer not in searches and len(searches) < defaults.KV_PROVIDERS:
                        searches[peer] = PrefixSearch(chain.tags, most)
                        ask(peer)
        providers = [KvProvider(peer, search.held) for peer, search in searches.items()]
        providers.append(KvProvider(self._own, self._held.held(chain, layers)))
        best = sorted((one for one in providers if one.chunks), key=lambda one: -one.chunks)
        rounds = max((search.rounds for search in searches.values()), default=0)
        return KvFound(tuple(best), found, rounds)

    async def _look_up(self, chain: Chain, timeout: float) -> FindingResult:
        """Return the records under a chain's key."""
        return await self._records.find(
            chain.key,
            most=defaults.FIND_MOST,
            enough=defaults.KV_PROVIDERS,
            timeout=timeout,
            kinds=(KvBody.kind,),
        )

    def refute(self, peer: PeerId) -> None:
        """Distrust a peer for a while, because it did not have what it claimed."""
        self.liars.pop(peer, None)
        self.liars[peer] = self._host.now() + defaults.KV_DISTRUST
        while len(self.liars) > defaults.KV_LIARS:
            self.liars.popitem(last=False)

    def _claims(
        self, records: Sequence[FoundRecord], chain: Chain, layers: Layers
    ) -> list[tuple[PeerId, int]]:
        """Return the peers to ask, each with the number of chunks that it claims to have.

        The largest claims come first. Equal claims are in random order.
        """
        claims: dict[PeerId, list[int]] = {}
        for each in records:
            body, author = each.record.body, each.record.author
            if not isinstance(body, KvBody) or body.key != chain.key or author == self._own:
                continue
            if body.layers[0] > layers[0] or body.layers[1] < layers[1] or self._lied(author):
                continue
            claims.setdefault(author, []).append(min(body.blocks, len(chain)))
        slots = defaults.SLOTS[KvBody.kind]
        listed = [
            # An author that uses all its slots may hold longer chains than its records show.
            (peer, len(chain) if len(blocks) >= slots else max(blocks))
            for peer, blocks in claims.items()
        ]
        lots = {peer: self._host.entropy(4) for peer, _ in listed}
        listed.sort(key=lambda claim: (-claim[1], lots[claim[0]]))
        return listed[: defaults.KV_PROVIDERS]

    def _lied(self, peer: PeerId) -> bool:
        """Return whether a peer is distrusted."""
        return self.liars.get(peer, 0.0) > self._host.now()

    async def _ask(
        self, peer: PeerId, search: PrefixSearch, layers: Layers, scope: trio.CancelScope
    ) -> None:
        """Ask a provider how long its prefix is, until this is known or the provider has lied.

        Cancels `scope` if it is the whole chain, because there is no longer prefix.
        """
        try:
            link = await self._connect(peer)
            while not search.done:
                reply = await link.call(
                    "kv.have",
                    {"layers": list(layers)},
                    search.question(),
                    priority=Priority.CONTROL,
                    timeout=defaults.KV_ANSWER,
                )
                if not search.answered(bytes(reply.payload[: SHORT * defaults.KV_ASKED + 1])):
                    self.refute(peer)
                    search.held = 0
                    return
            if search.held == len(search):
                scope.cancel()
        except TransportError:
            return  # what its earlier replies have shown still counts
