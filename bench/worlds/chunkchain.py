"""A chain of two simulated stages, whose KV of a prompt two other nodes have: what a gateway, its
stages and their fetches take until the first token."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal
from unittest.mock import patch

import trio

from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import Profile
from shoal.netsim.host import Host as Computer
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.state.membership.record import Capacity, MemberRecord, ShardRecord
from shoal.tasks.chunks.connector import ChunkConnector, NodeFunctions
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import (
    EngineEvent,
    HiddenEvent,
    LoadShard,
    Parts,
    SessionTerms,
    Span,
)
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import Gateway
from shoal.tasks.inference.generation import GenerateRequest, GenerationRun, Model
from shoal.tasks.inference.names import names_behind
from shoal.tasks.inference.stage import Stage
from shoal.tasks.placement.shard import ShardProperties
from shoal.tasks.text.frames import TextInfo
from shoal.tasks.text.process import TextDelta
from shoal.transport.address import Address
from shoal.transport.host.seam import Host
from shoal.transport.identity import PeerId

from .chunknodes import Always, ChunkNode, serving

ChainMode = Literal["choice", "first", "fetch", "compute"]
CHAIN_MODES: Final[tuple[ChainMode, ...]] = ("choice", "first", "fetch", "compute")
"""`first`: each stage fetches what is worth it, and then the chain computes. `fetch`: all of it."""
_SPAN: Final = 256
_FAST: Final = 1e9 / 8  # byte/s of the lines of the gateway and of the stages
_PREFILL: Final = b"prefill of bench"


class _Text:
    """Text process of a model whose prompts are all the same."""

    info = TextInfo(32000, None, 2, (2,), True)

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        await trio.lowlevel.checkpoint()
        return list(self._ids)

    async def encode_chat(self, messages: Any, **how: Any) -> list[int]:
        return await self.encode("")

    async def detokenizer(self, stop: Sequence[str] = ()) -> "_Text":
        await trio.lowlevel.checkpoint()
        return self

    completed = ""

    async def texts(self, tokens: Sequence[int]) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [f"{token} " for token in tokens]

    async def push(self, *tokens: int) -> TextDelta:
        await trio.lowlevel.checkpoint()
        return TextDelta("".join(f"{token} " for token in tokens), False)

    async def finish(self) -> str:
        await trio.lowlevel.checkpoint()
        return ""


class ChainNode(ChunkNode):
    """A node with a part of the model, which may be a stage, or has a gateway."""

    def __init__(self, host: Host, seed: int, engine: SimulatedEngine) -> None:
        super().__init__(host, seed, engine)
        self.courier = Courier(self.endpoint)
        self.provider_peer: PeerId | None = None
        self.stage: Stage | None = None
        self.is_stage = trio.Event()
        self.record = self._record(())

    def _record(self, shards: tuple[ShardRecord, ...]) -> MemberRecord:
        return MemberRecord(
            peer=self.identity.peer, seq=1, addresses=(), version="0",
            capacity=Capacity(2, 10**10, True), models=(), shards=shards, stored=(),
        )  # fmt: skip

    def _connector(self, mode: ChainMode) -> ChunkConnector | None:
        if mode == "compute" or self.provider_peer is None:
            return None
        peers = [self.provider_peer]
        around = NodeFunctions(self._link, lambda *_: peers, lambda _: True)
        rest = self.index, self.store, around
        connector = ChunkConnector(self._host, self.identity.peer, self.engine, *rest)
        return Always.of(connector) if mode == "fetch" else connector

    def become_stage(self, mode: ChainMode) -> None:
        """Serve the loaded shard."""
        shard, loaded = self._shard, self._loaded
        assert shard is not None and loaded is not None
        arch, parts = architecture(shard.config), shard.parts
        self.stage = Stage(self._host, self.courier, self.engine, connector=self._connector(mode))
        kv = 1 << 15
        held = ShardProperties(
            *(shard.root, parts, "bfloat16", arch.hidden, arch.vocab, arch.context, kv),
            *(arch.kv_heads, arch.head_dim, True, arch),
        )
        self.stage.serve(held, 0, loaded.costs)
        whole = parts.embedding, parts.start, parts.stop, parts.head
        self.record = self._record((ShardRecord(shard.root, *whole, "bfloat16", kv),))
        self.is_stage.set()

    async def compute(
        self, ids: Sequence[int], names: bytes, owner: PeerId, hidden: list[bytes]
    ) -> list[bytes]:
        """Compute a prompt for a gateway, keep its KV, and return the states of its spans. `hidden`
        are those of the stage before, if there is one."""
        outputs, done = list[bytes](), trio.Event()
        spans = range(0, len(ids), _SPAN)

        def on_event(event: EngineEvent) -> None:
            if isinstance(event, HiddenEvent):
                outputs.append(bytes(event.data))
                if len(outputs) == len(spans):
                    done.set()

        terms = SessionTerms(owner, names=names)
        await self.engine.open(_PREFILL, len(ids) + 1, on_event, terms)
        for number, start in enumerate(spans):
            count = min(_SPAN, len(ids) - start)
            states = hidden[number] if hidden else None
            tokens = None if hidden else tuple(ids[start : start + count])
            self.engine.submit(Span(_PREFILL, 1, start, count, tokens=tokens, hidden=states))
        await done.wait()
        await self.engine.close(_PREFILL, names)
        origin = self.origin
        self.store.add(type(origin)(*(origin.root, origin.dtype, origin.layers, 0, owner)), names)
        return outputs


class _Members:
    """Directory of the stages."""

    version = 0

    def __init__(self, nodes: Sequence[ChainNode]) -> None:
        self._nodes = nodes

    def members(self) -> Mapping[PeerId, MemberRecord]:
        return {node.identity.peer: node.record for node in self._nodes}

    async def changed(self, version: int) -> int:
        await trio.sleep_forever()
        return version


class _Models:
    def __init__(self, model: Model) -> None:
        self._model = model

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        await trio.lowlevel.checkpoint()
        yield self._model

    async def alike(self, model: Model, root: str) -> Model | None:
        await trio.lowlevel.checkpoint()
        return None


@dataclass(frozen=True, slots=True)
class ChainFirst:
    """Seconds until the first token, the token, and the bytes that the stages have fetched."""

    seconds: float
    token: int
    fetched: int


class ChunkChain:
    """Five machines: a gateway, two stages, and a provider of each stage's KV.

    `rates` are those of the lines of the two providers, in byte/s, and `delay` that of each line in
    seconds. `invented` makes a part of the model on the disk of a host. If `warm`, the first stage
    has cached the prompt.
    """

    def __init__(
        self, rates: tuple[float, float], profile: Profile,
        invented: Callable[[SimulatedHost, Parts], LoadShard], layers: int, *,
        delay: float, warm: bool = False,
    ) -> None:  # fmt: skip
        self._rates = rates
        self._profile = profile
        self._invented = invented
        middle = layers // 2
        self._parts = Parts(True, 0, middle, False), Parts(False, middle, layers, True)
        self._delay = delay
        self._warm = warm
        self.world = World(seed=1)

    def run(self, mode: ChainMode, ids: Sequence[int]) -> ChainFirst:
        """Measure one way to get the first token behind a prompt."""
        with patch.object(GenerationRun, "skips", mode == "choice"):
            found: ChainFirst = self.world.run(partial(self._main, mode, ids))
        return found

    async def _main(self, mode: ChainMode, ids: Sequence[int]) -> ChainFirst:
        rates = {"has 0": self._rates[0], "has 1": self._rates[1]}
        nodes, computers = list[ChainNode](), list[Computer]()
        for number, name in enumerate(("client", "asks 0", "asks 1", "has 0", "has 1")):
            pipe = PipeSpec(rate=rates.get(name, _FAST), delay=self._delay)
            computer = self.world.host(name, link=LinkSpec(pipe, pipe))
            parts = self._parts[(number - 1) % 2] if number else None
            computers.append(computer)
            nodes.append(await computer.start(_Program(self._node, number + 1, parts)))
        addresses = [
            Address(computer.addresses()[0], 4001, node.identity.peer)
            for computer, node in zip(computers, nodes, strict=True)
        ]
        for at, others in ((0, (1, 2)), (1, (2, 3)), (2, (4,))):
            for other in others:
                await computers[at].run(nodes[at].dial, addresses[other])
        return await computers[0].run(self._measure, nodes, mode, ids)

    async def _node(
        self, number: int, parts: Parts | None, computer: Computer, *,
        task_status: "trio.TaskStatus[ChainNode]",
    ) -> None:  # fmt: skip
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, self._profile, nursery)
            node = ChainNode(host, number, SimulatedEngine(host, 1, 64 << 30, "numbers"))
            async with serving(node, "0.0.0.0", 4001):
                if parts is not None:
                    await node.load(self._invented(host, parts))
                task_status.started(node)
                await node.is_stage.wait()
                assert node.stage is not None
                await node.stage.run()

    async def _measure(
        self, nodes: list[ChainNode], mode: ChainMode, ids: Sequence[int]
    ) -> ChainFirst:
        client, *stages = nodes[:3]
        shard = stages[0]._shard
        assert shard is not None
        arch, root = architecture(shard.config), shard.root
        text: Any = _Text(ids)
        model = Model(
            *(root, "model", arch.layers, arch.hidden, arch.context, arch.vocab, text),
            family=arch.family, arch=arch,
        )  # fmt: skip
        members: Any = _Members(stages)
        gateway = Gateway(client._host, client.courier, members, _Models(model))
        names = gateway._chains.names(model, ids)
        owner, first = client.identity.peer, stages[0].identity.peer
        hidden = await nodes[3].compute(ids, names, owner, [])
        await nodes[4].compute(ids, names_behind(names, (first,)), owner, hidden)
        if self._warm:
            await nodes[1].compute(ids, names, owner, [])
        for stage, provider in zip(stages, nodes[3:], strict=True):
            stage.provider_peer = provider.identity.peer
            stage.become_stage(mode)
        await trio.sleep(0.1)
        request = GenerateRequest("model", prompt="it", raw=True, max_tokens=1)
        summary = await gateway.generate(request, _ignored)
        given = sum(node.provider.given_bytes for node in nodes[3:])
        return ChainFirst(summary.ttft_s, summary.token_ids[0], given)


async def _ignored(_event: object) -> None:
    pass


class _Program:
    """Program of a simulated host that is one node."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._function = function
        self._args = args

    async def run(self, computer: Computer, *, task_status: "trio.TaskStatus[Any]") -> None:
        await self._function(*self._args, computer, task_status=task_status)
