"""Fakes at the seams of a session: links in memory, an engine that hashes, a tokenizer of bytes."""

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgpack
import trio

from shoal.state.directory import Directory
from shoal.state.membership.record import Capacity, MemberRecord, ShardRecord
from shoal.tasks.engine.adapters import AdapterTerms, LoadAdapter
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    NAME_BYTES,
    Engine,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    KvRange,
    Parts,
    SessionId,
    SessionTerms,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.kv.blocks import BLOCK
from shoal.tasks.engine.kv.parts import range_of
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.gateway import ChatTurn, Finders, Gateway, Model, TextDelta
from shoal.tasks.inference.generation import TextCodec
from shoal.tasks.inference.stage import Stage
from shoal.tasks.inference.stagechunks import Connector
from shoal.tasks.placement.shard import ShardProperties
from shoal.tasks.text.frames import TextInfo
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, DialFailed, LinkClosed
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Answer, Call, Handler, Refusal, Reply
from shoal.transport.link.link import Link

ROOT = "ab" * 32
VOCABULARY = 300
EOS = 299
CONTEXT = 2000
KV = 10**6  # positions of one stage
HIDDEN = 2  # values of 4 bytes


class FakeHost:
    """The clock, and entropy that counts."""

    def __init__(self) -> None:
        self._made = 0

    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return 0.0

    def entropy(self, size: int) -> bytes:
        self._made += 1
        return self._made.to_bytes(size)

    async def offload(self, work: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*args)


def peer_of(number: int) -> PeerId:
    return Identity.from_seed(bytes([number]) * 32).peer


class Wire:
    """Delivers all messages in the order of sending, one at a time."""

    def __init__(self) -> None:
        self.endpoints: dict[PeerId, FakeEndpoint] = {}
        self._send, self._receive = trio.open_memory_channel[Callable[[], object]](10_000)
        self.posts: list[tuple[PeerId, PeerId, str, dict[str, Any]]] = []
        self.calls: list[tuple[PeerId, PeerId, str]] = []
        self.refusals: list[Refusal] = []
        self.steps = 0  # things delivered
        self.freeze_at: int | None = None
        self.delay = 0.0  # seconds before each
        self.backlog = 0  # bytes that have not arrived yet, on each link
        self.seen: dict[PeerId, dict[str, tuple[int, int]]] = {}  # addresses without a relay
        self.nursery: trio.Nursery | None = None  # of handlers that take their time

    def later(self, work: Callable[[], object]) -> None:
        self._send.send_nowait(work)

    async def run(self) -> None:
        async for work in self._receive:
            if self.freeze_at is not None and self.steps >= self.freeze_at:
                await trio.sleep_forever()
            self.steps += 1
            await trio.sleep(self.delay)
            work()


class FakeLink:
    round_trip: float | None = None  # in seconds, as if it was not measured yet
    rate = 0.0  # byte/s, as if they were not measured yet
    path_kind = PathKind.RELAYED

    def __init__(self, wire: Wire, own: PeerId, peer: PeerId) -> None:
        self._wire = wire
        self._own = own
        self.peer = peer
        self.quiet = peer in wire.endpoints[own].quiet if own in wire.endpoints else False
        self.needed = own in wire.endpoints and peer in wire.endpoints[own].needed
        self.backlog, self.rtt = wire.backlog, 0.02
        self.seen = wire.seen.get(peer, {})

    def _target(self) -> "FakeEndpoint":
        target = self._wire.endpoints.get(self.peer)
        if target is None or self._own not in self._wire.endpoints:
            raise LinkClosed("peer-gone", f"{self.peer} is gone")
        return target

    def post(
        self, method: str, header: Mapping[str, Any], payload: bytes = b"", *, priority: Priority
    ) -> None:
        self._target()
        self._wire.posts.append((self._own, self.peer, method, dict(header)))
        self._wire.later(lambda: self.deliver(method, dict(header), bytes(payload)))

    def deliver(self, method: str, header: dict[str, Any], payload: bytes = b"") -> None:
        """Hand a message to the peer at once, even while the wire is frozen."""
        if (target := self._wire.endpoints.get(self.peer)) is not None:
            answer = target.handlers[method](Call(self._own, header, payload))
            if isinstance(answer, Refusal):
                self._wire.refusals.append(answer)
            elif not isinstance(answer, Reply):
                assert self._wire.nursery is not None
                self._wire.nursery.start_soon(_finish, answer)

    async def call(
        self,
        method: str,
        header: Mapping[str, Any] = {},
        payload: bytes = b"",
        *,
        priority: Priority = Priority.CONTROL,
        timeout: float,
    ) -> Reply:
        await trio.lowlevel.checkpoint()
        self._wire.calls.append((self._own, self.peer, method))
        if self.quiet:
            await trio.sleep(timeout)
            raise CallRefused("timeout", "the peer is quiet")
        handler = self._target().handlers.get(method)
        if handler is None:
            raise CallRefused("unknown-method", method)
        answer = handler(Call(self._own, dict(header), payload))
        if not isinstance(answer, Reply | Refusal):
            with trio.fail_after(timeout):
                answer = await answer
        await trio.lowlevel.checkpoint()
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer


async def _finish(answer: Awaitable[Answer]) -> None:
    await answer


class FakeEndpoint:
    def __init__(self, wire: Wire, peer: PeerId) -> None:
        self.peer = peer
        self.handlers: dict[str, Handler] = {}
        self._wire = wire
        self._lost: list[Callable[[Link, str], None]] = []
        self._on_quiet: list[Callable[[Link], None]] = []
        self._on_back: list[Callable[[Link], None]] = []
        self.holders: list[Callable[[PeerId], bool]] = []
        self.watchers: list[Callable[[PeerId], bool]] = []
        self.cut: set[PeerId] = set()
        self.quiet: set[PeerId] = set()
        self.needed: set[PeerId] = set()
        wire.endpoints[peer] = self

    def handle(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        self._lost.append(callback)

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        self._on_quiet.append(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        self._on_back.append(callback)

    def watch_links(self, watcher: Callable[[PeerId], bool]) -> None:
        self.watchers.append(watcher)

    def watches(self, peer: PeerId) -> bool:
        """Return whether the link to a peer must not rest."""
        return any(watcher(peer) for watcher in self.watchers)

    def hold_links(self, holder: Callable[[PeerId], bool]) -> None:
        self.holders.append(holder)

    def hush(self, peer: PeerId) -> None:
        """Make the link to a peer quiet."""
        self.quiet.add(peer)
        self._tell(self._on_quiet, peer)

    def hear(self, peer: PeerId) -> None:
        self.quiet.discard(peer)
        self._tell(self._on_back, peer)

    def _tell(self, callbacks: list[Callable[[Link], None]], peer: PeerId) -> None:
        for callback in callbacks:
            callback(cast(Link, FakeLink(self._wire, self.peer, peer)))

    def link(self, peer: PeerId) -> FakeLink | None:
        there = peer in self._wire.endpoints and peer not in (*self.cut, self.peer)
        return FakeLink(self._wire, self.peer, peer) if there else None

    def lose(self, peer: PeerId, code: str = "peer-gone") -> None:
        self.cut.add(peer)
        link = FakeLink(self._wire, self.peer, peer)
        for callback in self._lost:
            callback(cast(Link, link), code)


def _mix(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest())


@dataclass
class _State:
    tokens: int
    on_event: Callable[[EngineEvent], None]
    rows: list[list[int]] = field(default_factory=list)
    running: bool = True
    owner: str = ""


def pooled(outputs: Sequence[int]) -> tuple[float, float]:
    """Return the sum of the "final states" of positions: their number, and a part of each."""
    return float(len(outputs)), float(sum(output % 97 for output in outputs))


class FakeEngine:
    """Each position's output depends on all inputs up to it and on every layer's number."""

    def __init__(self, wire: Wire, parts: Parts, *, kv_tokens: int = KV) -> None:
        self._wire = wire
        self.parts = parts
        self.kv_tokens = kv_tokens
        self.cached = 0  # positions that it claims to have cached of any prefix
        self.kept: dict[tuple[str, bytes], list[list[int]]] = {}  # rows by owner and name
        self.ahead: list[list[int]] = []  # rows of a prompt, of which sessions have …
        self.arrived: dict[SessionId, tuple[int, int]] = {}  # … those from one position to another
        self.adapters: set[str] = set()  # roots of those that are loaded
        self.adapted: list[LoadAdapter] = []  # all commands to load one
        self.refuse_adapter = ""  # the code of the refusal
        self.terms: list[SessionTerms] = []  # of all sessions
        self.closed: list[bytes] = []  # names that sessions were closed with
        self.states: dict[SessionId, _State] = {}
        self.spans: list[Span] = []
        self.holds = 0
        self.fail_at: int | None = None  # a span that ends there fails
        self.fail_code = "gap"
        self.refuse_spans = False
        self.recalled: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        self.refuse_recall = ""  # the code of the next refusal
        self.refuse_kv = ""  # the code of the refusal of parts
        self.crashed = False
        self.poison: int | None = None  # a span that ends there or later crashes the engine
        self.crash: Callable[[], None] = self.lose_all
        self.opening: trio.Event | None = None  # `open` waits for it
        self.closing: trio.Event | None = None

    async def load(self, shard: object, number: int = 0) -> object:
        raise NotImplementedError

    async def adapt(self, adapter: LoadAdapter, shard: int = 0) -> None:
        self.adapted.append(adapter)
        if self.refuse_adapter:
            raise EngineError(self.refuse_adapter, "as the test wants")
        self.adapters.add(adapter.root)

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        if self.crashed:
            raise EngineError("worker-crashed", "the worker is not there")
        if terms.adapter and terms.adapter not in self.adapters:
            raise EngineError("no-adapter", "the adapter is not loaded")
        if sum(state.tokens for state in self.states.values()) + tokens > self.kv_tokens:
            raise EngineError("no-memory", "no memory for that many tokens")
        self.terms.append(terms)
        rows = self._found(terms) or [[0] * 100] * self.cached
        self.states[session] = _State(tokens, on_event, rows, owner=terms.owner)
        if self.opening is not None:
            await self.opening.wait()
        await trio.lowlevel.checkpoint()
        return len(rows)

    def _found(self, terms: SessionTerms) -> list[list[int]]:
        """Return the rows of the longest named prefix."""
        rows: list[list[int]] = []
        for at in range(0, len(terms.names), NAME_BYTES):
            found = self.kept.get((terms.owner, terms.names[at : at + NAME_BYTES]))
            if found is None:
                break
            rows = found
        return [*rows]

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        await trio.lowlevel.checkpoint()
        if code := self.refuse_recall:
            self.refuse_recall = ""
            raise EngineError(code, "as the test wants")
        if session not in self.states:
            raise EngineError("unknown-session", "the session is not open")
        self.recalled.append((position, tuple(prompt), tuple(answer)))

    def submit(self, span: Span) -> None:
        if self.refuse_spans:
            raise EngineError("bad-span", "refused")
        self.spans.append(span)
        state = self.states.get(span.session)
        if state is None:
            raise EngineError("unknown-session", "the session is not open")
        self._wire.later(lambda: self._compute(state, span))

    def hold(self) -> None:
        self.holds += 1

    def cancel(self, session: SessionId) -> None:
        if session in self.states:
            self.states[session].running = False

    async def unload(self, number: int) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        if self.closing is not None:
            await self.closing.wait()
        await trio.lowlevel.checkpoint()
        state = self.states.pop(session, None)
        self.closed.append(names)
        if state is not None:
            for number in range(min(len(names) // NAME_BYTES, len(state.rows) // BLOCK)):
                name = names[number * NAME_BYTES : (number + 1) * NAME_BYTES]
                self.kept[state.owner, name] = state.rows[: (number + 1) * BLOCK]

    async def read_kv(self, source: SessionId, part: KvRange, form: str) -> bytes:
        """Return rows of a session as a part of KV, of all layers."""
        await trio.lowlevel.checkpoint()
        rows = self.states[source].rows
        if part.stop > len(rows):
            raise EngineError("bad-state", "the session is shorter")
        place = part.start, part.stop, part.first, part.last
        header = msgpack.packb(["shoal-kv-part", 1, ROOT, "", "float32", "fake", form, place, 1, 1])
        data = json.dumps(rows[part.start : part.stop]).encode()
        return b"".join((struct.pack("!H", len(header)), header, data))

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        """Append rows to a session."""
        await trio.lowlevel.checkpoint()
        if self.refuse_kv:
            raise EngineError(self.refuse_kv, "as the test wants")
        state, (place, _) = self.states[session], range_of(memoryview(part))
        if place.start != len(state.rows):
            raise EngineError("gap", "a part does not follow")
        size = 2 + struct.unpack_from("!H", part)[0]
        state.rows += json.loads(part[size:])
        return len(state.rows)

    def lose_all(self) -> None:
        """End all sessions and open no others, as when the worker process is killed."""
        states, self.states, self.crashed = self.states, {}, True
        self.kept.clear()
        for name, state in states.items():
            state.on_event(FailedEvent(name, 1, "worker-crashed", "killed by signal 9"))

    def preempt_all(self) -> None:
        """End all sessions, as if others needed their memory."""
        states, self.states = self.states, {}
        for name, state in states.items():
            state.on_event(FailedEvent(name, 1, "preempted", "its memory was needed"))

    def _compute(self, state: _State, span: Span) -> None:
        if self.states.get(span.session) is not state or not state.running:
            return
        end = span.start + span.count
        if self.poison is not None and end >= self.poison:
            self.crash()
            return
        first, last = self.arrived.get(span.session, (0, 0))
        if first <= len(state.rows) < span.start <= last:
            state.rows += self.ahead[len(state.rows) : span.start]
        if span.start > len(state.rows) or end == self.fail_at:
            self._fail(state, span, self.fail_code)
            return
        outputs = self._forward(state, span)
        if span.want == "token":
            self._sampled(state, span, outputs[-1])
        elif span.want == "pooled":
            data = memoryview(struct.pack("<2f", *pooled(outputs)))
            state.on_event(
                HiddenEvent(span.session, span.epoch, span.start, span.count, data, 0.001)
            )
        else:
            data = memoryview(struct.pack(f"<{len(outputs)}Q", *outputs))
            state.on_event(
                HiddenEvent(span.session, span.epoch, span.start, span.count, data, 0.001)
            )

    def _fail(self, state: _State, span: Span, code: str) -> None:
        state.on_event(FailedEvent(span.session, span.epoch, code, "failed as told"))

    def _forward(self, state: _State, span: Span) -> list[int]:
        if span.tokens is not None:
            assert self.parts.embedding
            values: Sequence[int] = span.tokens
        else:
            assert span.hidden is not None
            values = struct.unpack(f"<{span.count}Q", span.hidden)
        del state.rows[span.start :]
        for value in values:
            state.rows.append(self.row(state.rows[-1] if state.rows else [], value))
        return [row[-1] for row in state.rows[span.start :]]

    def row(self, before: Sequence[int], value: int) -> list[int]:
        """A position's "KV": each layer mixes the layer below with its own previous position."""
        row = [value]
        for layer in range(self.parts.start, self.parts.stop):
            last = before[len(row)] if before else 0
            row.append(_mix(layer, last, row[-1]))
        return row

    def _sampled(self, state: _State, span: Span, output: int) -> None:
        assert self.parts.head
        token = output % (VOCABULARY - 1) if span.sampling.seed == 0 else EOS
        final = span.steps == 1 or token in span.stop_ids
        position = span.start + span.count
        top = tuple(((token + place) % VOCABULARY, -1.0 - place) for place in range(span.top))
        state.on_event(
            TokenEvent(span.session, span.epoch, position, token, -1.0, final, 0.001, top)
        )
        if not final:
            again = Span(
                span.session,
                span.epoch,
                position,
                1,
                tokens=(token,),
                want="token",
                sampling=span.sampling,
                steps=span.steps - 1,
                stop_ids=span.stop_ids,
                top=span.top,
            )
            self._wire.later(lambda: self._compute(state, again))


class FakeDetokenizer:
    """A token's text is its number and a blank."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop

    completed = ""

    async def texts(self, tokens: Sequence[int]) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [f"{token} " for token in tokens]

    async def push(self, *tokens: int) -> TextDelta:
        await trio.lowlevel.checkpoint()
        text = "".join(f"{token} " for token in tokens)
        self.completed = text
        assert len(tokens) == 1 or not self._stop
        return TextDelta("", True) if text.strip() in self._stop else TextDelta(text, False)

    async def finish(self) -> str:
        await trio.lowlevel.checkpoint()
        return "."


class FakeText:
    """A token is a letter's code."""

    info = TextInfo(VOCABULARY, None, EOS, (EOS,), True)

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [ord(letter) % VOCABULARY for letter in text]

    async def encode_chat(self, messages: Sequence[ChatTurn]) -> list[int]:
        return await self.encode("".join(f"<{item.role}>{item.content}" for item in messages))

    async def detokenizer(self, stop: Sequence[str] = ()) -> FakeDetokenizer:
        await trio.lowlevel.checkpoint()
        return FakeDetokenizer(stop)


class FakeModels:
    def __init__(self, layers: int) -> None:
        self._layers = layers

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Model]:
        await trio.lowlevel.checkpoint()
        text = cast(TextCodec, FakeText())
        yield Model(ROOT, name, self._layers, HIDDEN, CONTEXT, VOCABULARY, text)

    async def alike(self, model: Model, root: str) -> Model | None:
        await trio.lowlevel.checkpoint()
        return None


class Node:
    """One node of the fake swarm: stage and gateway on one courier."""

    def __init__(
        self, swarm: "FakeSwarm", number: int, parts: Parts | None, *, computes: bool = True
    ) -> None:
        self.peer = peer_of(number)
        self.endpoint = FakeEndpoint(swarm.wire, self.peer)
        self.parts = parts
        self.memory = 10**9  # bytes that it offers, as published
        self._swarm = swarm
        courier = self.courier = Courier(cast(Endpoint, self.endpoint), self._meet, self._need)
        self.engine = FakeEngine(swarm.wire, parts or Parts(False, 0, 0, False))
        self.stage = Stage(
            swarm.host,
            courier,
            cast(Engine, self.engine) if computes else None,
            adapters=swarm.adapters if swarm.has_adapters else None,
            connector=swarm.connector,
        )
        self.gateway = Gateway(
            swarm.host,
            courier,
            cast(Directory, swarm),
            FakeModels(swarm.layers),
            finders=Finders(swarm.seek, swarm.find_adapter),
            expect=self.stage.hold,
        )
        if parts is not None:
            self.serve(parts)

    def serve(self, parts: Parts, kv_tokens: int = KV, kv_heads: int = 0) -> None:
        """Serve a shard, whose sessions can be copied if it has `kv_heads`."""
        self.engine.kv_tokens = kv_tokens
        held = ShardProperties(ROOT, parts, "float32", HIDDEN, VOCABULARY, CONTEXT, kv_tokens)
        self.stage.serve(replace(held, kv_heads=kv_heads, head_dim=1))

    async def crash(self, start: float = 1.0, load: float = 2.0) -> None:
        """Kill the engine's worker. The next one starts in `start` seconds and loads for `load`."""
        assert self.parts is not None
        self.engine.lose_all()
        await trio.sleep(start)
        self.stage.withdraw()
        await trio.sleep(load)
        self.engine.crashed = False
        self.serve(self.parts)

    async def _meet(self, peer: PeerId) -> None:
        """A link to a member that was cut off, where the swarm allows it."""
        await trio.lowlevel.checkpoint()
        if not self._swarm.meets:
            raise DialFailed("unreachable", "no way there")
        self._swarm.met.append((self.peer, peer))
        self.endpoint.cut.discard(peer)
        self._swarm.wire.endpoints[peer].cut.discard(self.peer)

    def _need(self, link: Link) -> None:
        self.endpoint.needed.add(link.peer)

    def record(self) -> MemberRecord:
        shards = []
        if (parts := self.parts) is not None:
            shards.append(
                ShardRecord(
                    ROOT, parts.embedding, parts.start, parts.stop, parts.head, "float32", 10**6
                )
            )
        return MemberRecord(
            peer=self.peer,
            seq=1,
            addresses=(),
            version="0",
            capacity=Capacity(2, self.memory, True),
            models=(),
            shards=tuple(shards),
            stored=(),
        )


class FakeAdapters:
    """Source of adapters for the stages."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, Parts]] = []  # by root, for shards
        self.dropped = 0
        self.missing: set[str] = set()  # roots that this source does not find

    async def for_shard(self, root: str, held: ShardProperties, gateway: PeerId) -> LoadAdapter:
        await trio.lowlevel.checkpoint()
        if root in self.missing:
            await trio.sleep(15)
            raise SessionError("no-adapter", "nobody has it")
        self.delivered.append((root, held.parts))
        if root == "f" * 64:
            raise SessionError("no-adapter", "nobody has it")
        terms = AdapterTerms(ROOT, 1, 1.0, False, "F32", ("q_proj",), (0,))
        return LoadAdapter(root, terms, 0, (), ())

    async def drop_damaged(self, adapter: LoadAdapter) -> None:
        await trio.lowlevel.checkpoint()
        self.dropped += 1


class FakeSwarm:
    """Nodes that split `layers` layers as given by the ends of their ranges; also a directory.

    `splits=(2, 4, 6)` makes three stages; further nodes hold nothing. Node 0 is the client unless
    `client_serves`. `adapters` says whether stages have a source of adapters, and `connector`
    brings KV of other nodes.
    """

    def __init__(
        self,
        splits: Sequence[int],
        *,
        client_serves: bool = False,
        adapters: bool = False,
        connector: Connector | None = None,
    ) -> None:
        self.wire = Wire()
        self.host = cast(Host, FakeHost())
        self.layers = splits[-1]
        self.strangers: list[Node] = []
        self.sought = 0
        self.adapters = FakeAdapters()
        self.has_adapters = adapters
        self.connector = connector
        self.meets = False  # whether links are made that are lacking
        self.met: list[tuple[PeerId, PeerId]] = []
        self.version = 0
        self._news = trio.Event()
        parts = [
            Parts(start == 0, start, stop, stop == self.layers)
            for start, stop in zip((0, *splits), splits, strict=False)
        ]
        self.stages = [Node(self, number + 1, part) for number, part in enumerate(parts)]
        self.nodes = list(self.stages)
        self.client = self.stages[0]
        if not client_serves:
            self.client = Node(self, 200, None)
            self.nodes.append(self.client)

    def members(self) -> Mapping[PeerId, MemberRecord]:
        return {node.peer: node.record() for node in self.nodes if node not in self.strangers}

    # Nodes that become members only once they are searched for.

    async def find_adapter(self, text: str, model: Model) -> str:
        await trio.lowlevel.checkpoint()
        if text == "nobody":
            raise SessionError("no-adapter", "there is none")
        return text * 64

    async def seek(self, root: str) -> bool:
        assert root == ROOT
        self.sought += 1
        if not self.strangers:
            return False
        assert self.wire.nursery is not None
        self.wire.nursery.start_soon(self._introduce)
        return True

    async def _introduce(self) -> None:
        """Publish their records one after the other, some time after the links."""
        while self.strangers:
            await trio.sleep(0.2)
            self.strangers.pop()
            self.version += 1
            self._news.set()
            self._news = trio.Event()

    async def changed(self, version: int) -> int:
        await self._news.wait()
        return self.version

    async def run(self, body: Callable[["FakeSwarm"], Awaitable[None]]) -> None:
        """Run the nodes while `body` runs; afterwards no session may be left."""
        async with trio.open_nursery() as nursery:
            self.wire.nursery = nursery
            nursery.start_soon(self.wire.run)
            for node in self.nodes:
                await nursery.start(node.stage.run)
            await body(self)
            nursery.cancel_scope.cancel()

    @property
    def session(self) -> SessionId:
        """The session of the last span that was sent."""
        sent = (post for post in reversed(self.wire.posts) if post[2] == "session.span")
        return next(
            bytes(header["session"]) for peer, _, _, header in sent if peer == self.client.peer
        )

    def opens(self, nodes: "Sequence[Node]") -> int:
        """Return how often these nodes were asked to open a session."""
        asked = [peer for _, peer, method in self.wire.calls if method == "session.open"]
        return sum(asked.count(node.peer) for node in nodes)

    def assert_free(self) -> None:
        for node in self.nodes:
            assert node.stage.sessions == 0
            assert node.gateway.sessions == 0
            assert node.engine.states == {}
            assert node.stage.logged_bytes == 0

    def expected_sum(self, prompt: Sequence[int]) -> tuple[float, float]:
        """Return the pooled states of a prompt, computed without any session."""
        engine = FakeEngine(self.wire, Parts(True, 0, self.layers, True))
        rows = list[list[int]]()
        for token in prompt:
            rows.append(engine.row(rows[-1] if rows else [], token))
        return pooled([row[-1] for row in rows])

    def expected(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the answer of one engine with all layers, computed without any session."""
        engine = FakeEngine(self.wire, Parts(True, 0, self.layers, True))
        ids, row = list(prompt), list[int]()
        for position in range(len(prompt) + count - 1):
            row = engine.row(row, ids[position])
            if position + 1 == len(ids):
                ids.append(row[-1] % (VOCABULARY - 1))
        return ids[len(prompt) :]
