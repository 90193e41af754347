"""A provider and a receiver of chunks over a link in memory, with engines that store parts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from shoal.tasks.chunks.fetching import ChunkFetch, FetchPlan
from shoal.tasks.chunks.naming import CHUNK, chunk_names
from shoal.tasks.chunks.provider import ChunkProvider
from shoal.tasks.chunks.store import KvOrigin, SharedChunks
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import KvForm, KvRange, NamedBlocks, Parts
from shoal.tasks.engine.kv.arrival import Arrival
from shoal.tasks.engine.kv.parts import KvPartCodec
from shoal.transport.errors import CallRefused
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Answer, Call, Refusal, Reply
from tests.dht.chains import names as random_names
from tests.tasks.fake_swarm import FakeHost

ROOT = "ab" * 32
ARCH = architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 4096,
    }
)
PARTS = Parts(True, 0, 4, True)
CODEC = KvPartCodec(ROOT, ARCH, PARTS, "bfloat16", "a class")
COSTS = ShardCosts(0.01, 0.01, 0.0)  # 2.6 s for a chunk
GIVER, TAKER, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
GATEWAY = PeerId("gateway")


def names(chunks: int, seed: int = 0) -> bytes:
    """Names of the blocks of a prompt."""
    return b"".join(random_names(chunks * 16, seed))


def origin(**changes: Any) -> KvOrigin:
    return replace(KvOrigin(ROOT, "bfloat16", (0, 4), 0, GATEWAY), **changes)


def data_of(part: KvRange, form: KvForm) -> bytes:
    """The values of a part: its range, repeated."""
    size = CODEC.shape.part_bytes(part, form)
    return (bytes([part.start // 16, part.first]) * size)[:size]


class GivingEngine:
    """Engine that has cached everything, except what is in `evicted`."""

    def __init__(self) -> None:
        self.evicted = False
        self.asked: list[tuple[NamedBlocks, KvRange]] = []
        self.pause = 0.0

    async def read_kv(self, source: NamedBlocks, part: KvRange, form: KvForm) -> bytes:
        self.asked.append((source, part))
        await trio.sleep(self.pause)
        if self.evicted:
            raise EngineError("bad-state", "not cached")
        return CODEC.encode(part, form, data_of(part, form), source.adapter)


class TakingEngine:
    """Engine that checks and stores the parts of one session."""

    def __init__(self, length: int = 0) -> None:
        self.arrival = Arrival(range(4), length)
        self.taken: list[KvRange] = []
        self.doubted = False
        self.error: EngineError | None = None

    async def write_kv(self, session: bytes, part: bytes, *, doubted: bool = False) -> int:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        got = CODEC.parse(memoryview(part), "")
        if bytes(got.data) != data_of(got.range, got.form):
            raise EngineError("bad-state", "not finite, say")
        self.arrival.take(got.range)
        self.taken.append(got.range)
        self.doubted = doubted
        return self.arrival.complete


class Board:
    """Endpoint that stores its handlers, and index that stores what is announced."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.announced: list[tuple[Any, tuple[int, int], bool]] = []
        self.withdrawn: list[Any] = []

    def handle(self, method: str, handler: Any) -> None:
        self.handlers[method] = handler

    def announce(self, chain: Any, layers: tuple[int, int], *, publish: bool = True) -> None:
        self.announced.append((chain, layers, publish))

    def withdraw(self, chain: Any) -> None:
        self.withdrawn.append(chain)


@dataclass
class Status:
    rtt: float | None = 0.001
    rate: float = 0.0
    loss: float = 0.0
    path: str = "lan"


Twist = Callable[[Answer, dict[str, Any]], Answer]


@dataclass
class FakeLink:
    """Link of `asker` to a provider, which takes `seconds` for each byte and may twist replies."""

    board: Board
    asker: PeerId = TAKER.peer
    peer: PeerId = GIVER.peer
    rate: float = 1e9
    twist: Twist = lambda answer, _: answer
    hangs: bool = False
    silent_at: Callable[[dict[str, Any]], bool] = lambda header: False  # to this header
    slow_from: int = 1 << 30  # the first position whose parts arrive a million times slower
    carried: int = 0
    calls: int = 0
    status: Status = field(default_factory=Status)
    _wire: trio.Lock = field(default_factory=trio.Lock)

    async def call(
        self,
        method: str,
        header: dict[str, Any],
        payload: bytes = b"",
        *,
        priority: Priority,
        timeout: float,
    ) -> Reply:
        self.calls += 1
        with trio.move_on_after(timeout):
            if self.hangs or self.silent_at(header):
                await trio.sleep_forever()
            answer = await self.board.handlers[method](Call(self.asker, dict(header), payload))
            answer = self.twist(answer, header)
            async with self._wire:
                size = len(answer.payload) if isinstance(answer, Reply) else 100
                slower = 1e6 if header["part"][0] >= self.slow_from else 1.0
                for _ in range(10):
                    await trio.sleep(slower * size / self.rate / 10)
                    self.carried += size // 10
            if isinstance(answer, Refusal):
                raise CallRefused(answer.code, answer.message)
            return answer
        raise CallRefused("timeout", "no reply")


class Pair:
    """A provider with the chunks of one prompt, and a node that fetches them."""

    def __init__(self, chunks: int = 3) -> None:
        self.names = names(chunks)
        self.board = Board()
        self.giving = GivingEngine()
        self.store = SharedChunks(self.board, lambda root, layers: True)
        engine: Any = self.giving
        host: Any = FakeHost()
        self.provider = ChunkProvider(host, self.board, GIVER, self.store, engine)
        self.store.add(origin(), self.names)
        self.link = FakeLink(self.board)

    def plan(self, **changes: Any) -> FetchPlan:
        chain = origin().chain(self.names)
        assert chain is not None
        plan = FetchPlan(
            session=b"s" * 16,
            names=tuple(chunk_names(self.names)),
            tags=chain.tags,
            start=0,
            last=len(self.names) // 256,
            layers=(0, 4),
            form="int8",
            shape=CODEC.shape,
            costs=COSTS,
            doubted=False,
        )
        return replace(plan, **changes)

    async def fetch(self, engine: Any = None, **changes: Any) -> ChunkFetch:
        plan = self.plan(**changes)
        engine = engine or TakingEngine(plan.start)
        host: Any = FakeHost()
        link: Any = self.link
        fetch = ChunkFetch(host, TAKER.peer, link, engine, plan)
        await fetch.run()
        return fetch


ALL = 3 * CHUNK
