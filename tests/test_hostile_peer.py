"""Whole daemons against a hostile member of an open swarm: they survive, and still answer.

Everything is drawn from a seed, so a failure is one number: `SEED=… pytest -k seeds`.
"""

import hashlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from trio import TaskStatus

from shoal.dht.content.content import Content
from shoal.node.daemon.daemon import Node, run_node
from shoal.node.settings.config import NodeConfig
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.entry import Entry
from shoal.state.feeds.kinds import part_of_root
from shoal.state.membership.record import MemberRecord, ModelName, ShardRecord, seal_record
from shoal.state.replication.replica import Replica
from shoal.state.replication.replication import Replication
from shoal.state.views.models import model_fact
from shoal.state.views.placements import shard_fact, shard_key
from shoal.tasks.engine.adapters import LoadAdapter
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    EngineEvent,
    KvForm,
    KvRange,
    KvSource,
    Loaded,
    LoadShard,
    SessionId,
    SessionTerms,
    Span,
    TokenEvent,
)
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, TransportError
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.handshake.secured import PathLost
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity
from shoal.transport.lane import frame as wire
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.message import pack
from tests.bombs import SMALL_BOMBS
from tests.state.fake_feeds import Writer

BOMBS = tuple(SMALL_BOMBS.values())
HOST = RealHost()
LOOPBACK = "127.0.0.1"


class Parrot:
    """Engine that answers every span that wants a token with tokens at once."""

    pid: int | None = None

    def __init__(self, _host: Host, _threads: int, _memory: int) -> None:
        self._events: dict[SessionId, Callable[[EngineEvent], None]] = {}
        self.mute = False
        self.submitted = 0

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def on_restart(self, callback: Callable[[], None]) -> None:
        """Ignore the callback: it never crashes."""

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:
        msgpack.packb(dict(shard.config))  # as the worker process gets it
        return Loaded(1, 1, 0.0, frozenset({"forward"}))

    async def adapt(self, adapter: LoadAdapter, shard: int = 0) -> None:
        await trio.lowlevel.checkpoint()

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        self._events[session] = on_event
        await trio.lowlevel.checkpoint()
        return 0

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        await trio.lowlevel.checkpoint()

    def submit(self, span: Span) -> None:
        self.submitted += 1
        on_event = self._events[span.session]
        if self.mute or span.want != "token":
            return
        for step in range(min(span.steps, 8)):
            at, final = span.start + span.count + step, step + 1 == span.steps
            on_event(TokenEvent(span.session, span.epoch, at, 300 + step, -1.0, final, 0.0))

    def hold(self) -> None:
        """Do nothing: there is no background work."""

    def cancel(self, session: SessionId) -> None:
        """Do nothing: no computation runs."""

    async def unload(self, number: int) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        self._events.pop(session, None)
        await trio.lowlevel.checkpoint()

    async def export_kv(self, session: SessionId) -> bytes:
        return b""

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        return 0

    async def read_kv(self, source: KvSource, part: KvRange, form: KvForm = "exact") -> bytes:
        return b""

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        return 0

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        """Do nothing: there are no parts."""

    async def bring_kv(
        self, session: SessionId, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        return 0

    async def fork(self, session: SessionId, into: SessionId) -> None:
        """Do nothing: there is no state to copy."""

    async def usage(self) -> dict[str, int]:
        return {}


async def send(node: Node, line: bytes) -> dict[str, Any]:
    """Send one line to a node's control socket; return the last line of its answer."""
    stream = await trio.open_unix_socket(str(node.config.folder.control_socket))
    async with stream:
        await stream.send_all(line + b"\n")
        data = b""
        while piece := await stream.receive_some(65536):
            data += piece
    answer: dict[str, Any] = json.loads(data.splitlines()[-1])
    return answer


async def ask(node: Node, op: str, **more: Any) -> dict[str, Any]:
    return await send(node, json.dumps({"op": op, **more}).encode())


@asynccontextmanager
async def swarm(folder: Path, **second: Any) -> AsyncIterator[tuple[Node, Node]]:
    """Start two daemons, as `shoal node` does except for their engine; both serve."""
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:

            async def start(name: str, **more: Any) -> Node:
                config = NodeConfig(data=folder / name, listen=LOOPBACK, memory=1 << 30, **more)
                node: Node = await nursery.start(
                    partial(run_node, HOST, config, engine_factory=Parrot)
                )
                return node

            first = await start("first")
            await until(lambda: first.serving.phase == "serving")
            there = Address(LOOPBACK, first.endpoint.port, first.identity.peer)
            other = await start("second", bootstrap=(there,), **second)
            yield first, other
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def still_answers(*nodes: Node) -> None:
    """Make an honest request through each node, and check its status."""
    for node in nodes:
        answer = await ask(node, "run", model="tiny", prompt="hello", max_tokens=3)
        assert answer.get("ok", {}).get("tokens") == 3, answer
        assert (await ask(node, "status"))["ok"]["serving"]["phase"] == "serving"


class Foe:
    """A peer that sends what it likes; each of its links ends and comes back under a new name."""

    def __init__(self, nursery: trio.Nursery, dice: random.Random, targets: list[Node]) -> None:
        self._nursery = nursery
        self._dice = dice
        self._targets = targets
        self._words = Words(dice, targets)
        self._links: dict[str, Link] = {}
        self.calls = 0

    async def link(self, target: Node) -> Link:
        old = self._links.get(target.identity.peer)
        if old is not None and old.alive:
            return old
        foe = await endpoint(self._nursery, Identity.from_seed(self._dice.randbytes(32)))
        for method in target.endpoint._links.handlers.calls:
            foe.handle(method, self._answer)
        self._words.known.append(foe.peer)
        link = await foe.dial(Address(LOOPBACK, target.endpoint.port), timeout=10)
        self._links[target.identity.peer] = link
        return link

    def _answer(self, call: Call) -> Reply:
        return Reply(self._words.header(), self._words.payload())

    async def attack(self, rounds: int) -> None:
        for _ in range(rounds):
            for target in self._targets:
                for method in sorted(target.endpoint._links.handlers.calls):
                    await self._strike(await self.link(target), method)

    async def garble(self, times: int) -> None:
        """Send frames that no lane of ours sends, on links that were accepted."""
        for _ in range(times):
            for target in self._targets:
                link = await self.link(target)
                if (secured := link.paths.used) is not None and not secured.secured.blocked:
                    frames = [self._words.frame() for _ in range(self._dice.randrange(1, 30))]
                    with suppress(PathLost):
                        secured.secured.send(b"".join(frames))
                await trio.sleep(0.005)

    async def _strike(self, link: Link, method: str) -> None:
        """Make eight calls at once, each with its post, and ignore the results."""
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(self._call, link, method)

    async def _call(self, link: Link, method: str) -> None:
        priority = self._dice.choice(list(Priority))
        header, payload = self._words.header(), self._words.payload()
        self.calls += 1
        with suppress(TransportError):
            link.post(method, header, payload, priority=priority)
            await link.call(method, header, payload, priority=priority, timeout=0.5)


async def endpoint(nursery: trio.Nursery, identity: Identity) -> Endpoint:
    made = Endpoint(HOST, identity, admission=OpenSwarm())
    await nursery.start(made.run, LOOPBACK, 0)
    return made


class Words:
    """Headers and payloads: any types under the names that handlers read, and near misses."""

    KEYS = (
        *("session", "gateway", "epoch", "root", "parts", "dtype", "stages", "index", "tokens"),
        *("steps", "stop_ids", "sampling", "start", "count", "token", "seconds", "position"),
        *("logprob", "final", "code", "message", "lost", "offset", "digest", "private", "size"),
    )

    def __init__(self, dice: random.Random, targets: list[Node]) -> None:
        self._dice = dice
        self._targets = targets
        self.known: list[Any] = [target.identity.peer for target in targets]
        self._names = [dice.randbytes(16) for _ in range(4)]

    def header(self) -> dict[str, Any]:
        pick = self._dice.random()
        if pick < 0.3:
            return {key: self._value(2) for key in self._some_keys()}
        good = self._good()
        if pick < 0.8:
            for key in self._some_keys()[:2]:
                good[key] = self._value(2)
        return good

    def _some_keys(self) -> list[str]:
        return self._dice.sample(self.KEYS, self._dice.randrange(12))

    def _good(self) -> dict[str, Any]:
        """Return a header that an honest gateway, stage or getter might send now."""
        target = self._dice.choice(self._targets)
        root = self._dice.choice(sorted(target.library.roots()) or ["0" * 64])
        start = self._dice.choice([0, 0, 1, 5])
        return {
            "session": self._dice.choice(self._names),
            "epoch": 1,
            "root": root,
            "digest": self._dice.choice([root, "0" * 64]),
            "offset": 0,
            "parts": [True, 0, 6, True],
            "dtype": "float32",
            "stages": [target.identity.peer],
            "index": 0,
            "tokens": 64,
            "steps": 3,
            "stop_ids": [1, 2],
            "sampling": {"seed": 7},
            "start": start,
            "count": self._dice.choice([1, 2]),
            "token": self._dice.choice([True, False, 17]),
            "position": start + 1,
            "seconds": 0.0,
            "logprob": -1.0,
            "final": False,
            "code": "x",
            "message": "y",
        }

    def _value(self, depth: int) -> Any:
        dice = self._dice
        flat: list[Callable[[], Any]] = [
            lambda: None,
            lambda: dice.choice([True, False]),
            lambda: dice.choice([-1, 0, 1, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63)]),
            lambda: dice.choice([0.0, -0.0, 1e308, 5e-324, float("inf"), float("nan")]),
            lambda: dice.choice(["", "x" * 5000, "\x1b[2J\x00", "../../etc/passwd", "\u202e"]),
            lambda: dice.randbytes(dice.choice([0, 1, 16, 32, 3000])),
            lambda: dice.choice(self.known),
            lambda: dice.choice(self._names),
            lambda: msgpack.Timestamp(1, 2),
            lambda: msgpack.ExtType(5, b"x"),
        ]
        if depth and dice.random() < 0.3:
            items = [self._value(depth - 1) for _ in range(dice.randrange(6))]
            return items if dice.random() < 0.5 else {str(n): v for n, v in enumerate(items)}
        return dice.choice(flat)()

    def frame(self) -> bytes:
        """Return a frame, mostly of an existing kind and sometimes a plausible one."""
        dice = self._dice
        method = dice.choice(["session.span", "member.push", "blob.have", "x"])
        heads = [b"", dice.randbytes(dice.randrange(40)), wire.encode_request(method, {"n": 1})]
        head, payload = dice.choice(heads), dice.randbytes(dice.choice([0, 0, 5, 3000]))
        kind = dice.choice([*range(1, 6), *range(0x10, 0x16), *range(0x20, 0x24), 0xFF])
        flags = dice.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, 18])
        ident = dice.choice([0, 1, 2, 3, 4, 5, 2**63])
        offset = dice.choice([0, len(payload), len(payload), 1, 10_000, 2**24 + 1, 2**63])
        size = len(head) + len(payload)
        return wire.PREFIX.pack(size, kind, flags, len(head), 0, ident, offset) + head + payload

    def payload(self) -> bytes:
        dice = self._dice
        kinds: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: dice.randbytes(dice.randrange(64)),
            lambda: (dice.randrange(1000)).to_bytes(4, "little") * dice.choice([1, 2]),
            lambda: msgpack.packb(self._value(3)),
            lambda: msgpack.packb([[2, 0, dice.randbytes(100)]]),
            lambda: msgpack.packb([[2, 0, msgpack.packb([dice.randbytes(32), b"", b"\x80"])]]),
            lambda: msgpack.packb(dict.fromkeys(self.known, 2**53)),
            lambda: msgpack.packb([*self.known, None]),
            lambda: dice.choice(BOMBS),
            lambda: b"\x91" + dice.choice(BOMBS),
            lambda: bytes(70_000),
        ]
        return dice.choice(kinds)()


def control_lines(dice: random.Random) -> Iterator[bytes]:
    """Yield requests that a broken client could send."""
    texts = ["", "a\0b", "\ud800", "\udc80", "\x1b[2J", "x" * 5000, "tiny", "/dev/null", "/proc"]
    values: list[Any] = [None, True, -1, 10**400, 1e308, float("nan"), [], {}, [[]], *texts, texts]
    keys = ("path", "name", "model", "prompt", "raw", "max_tokens", "seed", "top_k", "top_p",
            "temperature", "stop", "uses", "address")  # fmt: skip
    good = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    for op in (
        "ping",
        "status",
        "peers",
        "models",
        "model_add",
        "model_show",
        "run",
        "invite",
        "?",
    ):
        for key in keys:
            for value in (*dice.sample(values, 3), "a\0b", "\ud800"):
                yield json.dumps({**good, "op": op, key: value}).encode()
    yield from (b"[]", b'{"op": []}', b"[" * 100_000, b'"\xff"', b"", b"\0")


async def attack(folder: Path, seed: int, rounds: int) -> int:
    dice = random.Random(seed)
    async with swarm(folder) as nodes, trio.open_nursery() as nursery:
        foe = Foe(nursery, dice, list(nodes))
        await foe.attack(rounds)
        await foe.garble(10 * rounds)
        await still_answers(*nodes)
        nursery.cancel_scope.cancel()
    return foe.calls


@pytest.mark.trio
async def test_no_call_of_a_peer_harms_a_daemon(tmp_path: Path) -> None:
    assert await attack(tmp_path, seed=1, rounds=2) > 100


@pytest.mark.long
@pytest.mark.trio
async def test_no_call_of_a_peer_harms_a_daemon_seeds(tmp_path: Path) -> None:
    first = int(os.environ.get("SEED", "100"))
    for seed in range(first, first + 5):
        assert await attack(tmp_path / str(seed), seed, rounds=40)


@pytest.mark.trio
async def test_no_request_of_a_client_harms_its_daemon(tmp_path: Path) -> None:
    lines = list(control_lines(random.Random(1)))
    async with swarm(tmp_path) as (node, _):
        limit = trio.CapacityLimiter(8)

        async def one(line: bytes) -> None:
            async with limit:
                await send(node, line)

        async with trio.open_nursery() as nursery:
            for line in lines:
                nursery.start_soon(one, line)
        await still_answers(node)


def evil_manifest(honest: bytes, value: bytes) -> bytes:
    """Return a manifest that is canonical except for one more value in its config."""
    fields = msgpack.unpackb(honest)
    fields["config"] = fields["config"][:-1] + b',"zz":' + value + b"}"
    return pack(fields)


@pytest.mark.trio
@pytest.mark.parametrize("value", [b"1e999", pytest.param(b'"\\ud800"', marks=pytest.mark.long)])
async def test_a_config_that_nothing_can_hold_is_a_model_error(
    tmp_path: Path, value: bytes
) -> None:
    async with swarm(tmp_path, model="evil") as (first, second), trio.open_nursery() as nursery:
        root = first.library.names()["tiny"]
        data = evil_manifest((await first.library.manifest(root)).encode(), value)
        await announce(nursery, second, data)
        await until(lambda: "out of range" in second.serving.status().text)
        error = (await ask(second, "run", model="evil", prompt="x"))["error"]
        assert error["code"] == "bad-config"
        await still_answers(first)
        nursery.cancel_scope.cancel()


async def announce(nursery: trio.Nursery, target: Node, data: bytes) -> Link:
    """Link a member that names the model `evil` and has its manifest."""
    author = Writer(ord("e"))
    foe = await endpoint(nursery, author.identity)
    root = hashlib.sha256(data).hexdigest()
    await says(
        nursery, foe, author.write(("models", 0), evil=model_fact(ModelName("evil", root, 6, 1)))
    )
    foe.handle("model.manifest", lambda call: Reply({"size": len(data)}, data))
    record = MemberRecord(foe.peer, seq=1, stored=(root,))
    link = await foe.dial(Address(LOOPBACK, target.endpoint.port), timeout=10)
    sealed = seal_record(author.identity, record)
    link.post("member.push", payload=msgpack.packb([[2, 0, sealed]]), priority=Priority.CONTROL)
    return link


async def says(nursery: trio.Nursery, foe: Endpoint, *entries: Entry) -> None:
    """Write these entries into the peer's feeds, which all linked peers get."""
    replication = Replication(HOST, foe, Replica(foe.peer, MemoryArchive()))
    await nursery.start(replication.run)
    await replication.write(entries)


@pytest.mark.trio
async def test_a_false_stage_of_unknown_dtype_is_no_stage(tmp_path: Path) -> None:
    """One hop over all layers is the shortest possible chain: a false claim must not make
    it win.
    """
    async with swarm(tmp_path) as (first, second), trio.open_nursery() as nursery:
        root = first.library.names()["tiny"]
        author = Writer(ord("s"))
        foe = await endpoint(nursery, author.identity)
        shard = ShardRecord(root, True, 0, 6, True, "aaa", 2**40, run=7)
        facts = {shard_key(root, 0): shard_fact(shard)}
        await says(nursery, foe, author.write(("shards", part_of_root(root)), **facts))
        link = await foe.dial(Address(LOOPBACK, second.endpoint.port), timeout=10)
        address = "/ip4/169.254.169.254/tcp/80"
        record = MemberRecord(foe.peer, seq=1, addresses=(address,), runs=(7,))
        sealed = seal_record(author.identity, record)
        link.post("member.push", payload=msgpack.packb([[2, 0, sealed]]), priority=Priority.CONTROL)
        await until(lambda: {foe.peer, first.identity.peer} <= set(second.directory.members()))
        await until(lambda: bool(second.directory.members()[foe.peer].shards))
        await until(lambda: bool(second.directory.members()[first.identity.peer].models))
        second.directory.publish(shards=())
        await second.network.remembering.write()
        answer = await ask(second, "run", model="tiny", prompt="x", max_tokens=3)
        assert answer.get("ok", {}).get("tokens") == 3, answer
        assert "169.254" not in (tmp_path / "second" / "peers").read_text()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_many_requests_for_a_node_s_chunks_cost_one_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check takes a file call per chunk: 256 calls of 100 bytes used to take minutes."""
    async with swarm(tmp_path) as (first, _), trio.open_nursery() as nursery:
        looks = 0
        ranges = first.exchange.provider.ranges

        def look(content: Content) -> bytes:
            nonlocal looks
            looks += 1
            return ranges(content)

        monkeypatch.setattr(first.exchange.provider, "ranges", look)
        foe = await endpoint(nursery, Identity.from_seed(b"h" * 32))
        link = await foe.dial(Address(LOOPBACK, first.endpoint.port), timeout=10)
        header = {"root": first.library.names()["tiny"]}
        busy = 0

        async def ask() -> None:
            nonlocal busy
            try:
                await link.call("blob.have", header, timeout=10)
            except CallRefused as refused:
                assert refused.code == "busy"
                busy += 1

        async with trio.open_nursery() as calls:
            for _ in range(100):
                calls.start_soon(ask)
        assert looks <= 2 and 0 < busy < 50
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_gateway_that_does_not_wait_fills_no_memory(tmp_path: Path) -> None:
    """While the engine computes, submitted work waits in the daemon, where it was not counted."""
    async with swarm(tmp_path) as (first, _), trio.open_nursery() as nursery:
        engine = first.base.engine
        assert isinstance(engine, Parrot)
        engine.mute = True
        foe = await endpoint(nursery, Identity.from_seed(b"w" * 32))
        link = await foe.dial(Address(LOOPBACK, first.endpoint.port), timeout=10)
        good = {
            "session": b"s" * 16, "epoch": 1, "root": first.library.names()["tiny"],
            "parts": [True, 0, 6, True], "dtype": "float32", "stages": [first.identity.peer],
            "index": 0, "tokens": 64, "soon": 64, "steps": 3, "stop_ids": [],
            "sampling": {"seed": 7},
            "start": 0, "count": 1, "token": True, "seconds": 0.0,
        }  # fmt: skip
        await link.call("session.open", good, timeout=5)
        for _ in range(500):
            link.post("session.span", good, bytes(4), priority=Priority.ACTIVATION)
        await link.call("session.close", good, priority=Priority.ACTIVATION, timeout=5)
        assert 1 < engine.submitted < 100
        engine.mute = False
        await still_answers(first)
        nursery.cancel_scope.cancel()
