"""`KvIndex`: who holds the KV of the longest beginning of a prompt.

The records of all chains that begin alike lie under the key of their first block, so one look-up
finds the holders; each is then asked how far it goes (`kv.have`). What they say is their word: who
is found at first use to lack what it claimed is not believed for a while. Spec: docs/spec/kv.md.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import trio

from ..transport.calls import Answer, Call, Handler, Refusal, Reply
from ..transport.errors import TransportError
from ..transport.frame import Priority
from ..transport.guard import Guard
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.link import Link
from ..transport.rates import Rate, Rates
from . import defaults, kvsearch
from .finding import Found
from .foundrecords import FoundRecord
from .key import Key
from .kvchain import Chain
from .kvheld import HeldChains, Layers
from .kvsearch import SHORT, PrefixSearch
from .record import Body, KvBody


class Switchboard(Protocol):
    """What is needed of an `Endpoint`."""

    peer: PeerId

    def handle(self, method: str, handler: Handler) -> None: ...


class Records(Protocol):
    """What is needed of a `Dht`."""

    async def find(self, key: Key, **how: Any) -> Found: ...
    def publish(self, body: Body, *, ttl: int = ..., lasting: bool = ...) -> None: ...
    def withdraw(self, body: Body) -> None: ...


@dataclass(frozen=True, slots=True)
class KvHolder:
    """A peer that says to hold the first `blocks` blocks of a chain."""

    peer: PeerId
    blocks: int


@dataclass(frozen=True, slots=True)
class KvFound:
    """Who holds how much, the most first; what the look-up was, and the most questions that one
    holder was asked, which is how many round trips it took."""

    holders: tuple[KvHolder, ...]
    lookup: Found
    rounds: int


class KvIndex:
    """One for each node. `connect` brings a link for a few questions; it raises TransportError."""

    def __init__(
        self,
        host: Host,
        endpoint: Switchboard,
        records: Records,
        *,
        connect: Callable[[PeerId], Awaitable[Link]],
        held: HeldChains | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._own = endpoint.peer
        self._records = records
        self._connect = connect
        self._held = held or HeldChains()
        self._rates = Rates(Rate(*defaults.KV_RATE), Rate(*defaults.KV_RATE_ALL))
        self._said: dict[Key, dict[str, KvBody]] = {}
        self._unsaid: dict[Key, None] = {}
        self._news = trio.Event()
        self._liars: OrderedDict[PeerId, float] = OrderedDict()  # until when
        endpoint.handle("kv.have", self._on_have)

    # What is here.

    def announce(self, chain: Chain, layers: Layers) -> None:
        """The KV of these layers of all its blocks is here, and has just been used."""
        self._say(self._held.add(chain, layers))

    def withdraw(self, chain: Chain) -> None:
        """It is here no more; of what it shares with others that are here nothing changes."""
        self._say(self._held.remove(chain))

    def _say(self, keys: set[Key]) -> None:
        self._unsaid |= dict.fromkeys(keys)
        self._news.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled: publish what has changed, so much a second and no more."""
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
        wanted = {body.slot: body for body in self._held.bodies(key)}
        for slot, body in self._said.pop(key, {}).items():
            if slot not in wanted:
                self._records.withdraw(body)
        for body in wanted.values():
            self._records.publish(body, ttl=defaults.KV_TTL, lasting=False)
        if wanted:
            self._said[key] = wanted

    def _on_have(self, call: Call) -> Answer:
        layers, asked = call.header.get("layers"), bytes(call.payload)
        whole = len(asked) % SHORT == 0 and 0 < len(asked) <= SHORT * defaults.KV_ASKED
        if not whole or not _are_layers(layers):
            return Refusal("bad-request", "layers and the beginnings of names are needed")
        if not self._rates.take(call.peer, self._host.now()):
            return Refusal("busy", "too many questions")
        start, stop = layers
        shorts = [asked[at : at + SHORT] for at in range(0, len(asked), SHORT)]
        names = [self._held.name(short, (start, stop)) for short in shorts]
        return Reply({}, kvsearch.answer(asked, names))

    # What others have.

    async def longest(
        self, chain: Chain, layers: Layers, *, timeout: float = defaults.KV_FIND
    ) -> KvFound:
        """Who holds these layers of the longest beginning of a chain, as far as they can be asked
        within `timeout` seconds; this node too. No holder is named that holds nothing of it."""
        found = await self._records.find(
            chain.key,
            most=defaults.FIND_MOST,
            enough=defaults.KV_HOLDERS,
            timeout=timeout,
            kinds=(KvBody.kind,),
        )
        claims = self._claims(found.records, chain, layers)
        searches = {peer: PrefixSearch(chain.names, most) for peer, most in claims}
        with trio.move_on_after(timeout):
            async with trio.open_nursery() as nursery:
                for peer, search in searches.items():
                    self._guard.start(nursery, peer, self._ask, peer, search, layers)
        holders = [KvHolder(peer, search.held) for peer, search in searches.items()]
        holders.append(KvHolder(self._own, self._held.held(chain, layers)))
        best = sorted((one for one in holders if one.blocks), key=lambda one: -one.blocks)
        rounds = max((search.rounds for search in searches.values()), default=0)
        return KvFound(tuple(best), found, rounds)

    def refute(self, peer: PeerId) -> None:
        """At use it has shown that it lacks what it claimed: it is not believed for a while."""
        self._liars.pop(peer, None)
        self._liars[peer] = self._host.now() + defaults.KV_DISTRUST
        while len(self._liars) > defaults.KV_LIARS:
            self._liars.popitem(last=False)

    def _claims(
        self, records: Sequence[FoundRecord], chain: Chain, layers: Layers
    ) -> list[tuple[PeerId, int]]:
        """Whom to ask, and for how many blocks: those who claim most, of equals by lot."""
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
            (peer, len(chain) if len(blocks) >= slots else max(blocks))  # it may have more to say
            for peer, blocks in claims.items()
        ]
        lots = {peer: self._host.entropy(4) for peer, _ in listed}
        listed.sort(key=lambda claim: (-claim[1], lots[claim[0]]))
        return listed[: defaults.KV_HOLDERS]

    def _lied(self, peer: PeerId) -> bool:
        return self._liars.get(peer, 0.0) > self._host.now()

    async def _ask(self, peer: PeerId, search: PrefixSearch, layers: Layers) -> None:
        """Until it is known how far a holder goes, or that it lies."""
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
        except TransportError:
            return  # what it has said so far counts


def _are_layers(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(each) is int for each in value)
        and 0 <= value[0] < value[1] <= defaults.LAYERS_LIMIT
    )
