"""Training passes over the network: simulated daemons, real code, and stages that fail or lie."""

import hashlib
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.defaults import EMBEDDED_ROOT
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.engine.adapters import AdapterTerms, Module, module_shapes
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.passes import OpenTuning, PassDone, PassOrder, pass_sizes
from shoal.tasks.errors import BadMessage, NoRoute, SessionError
from shoal.tasks.tuning.chain.checks import UsualNorms
from shoal.tasks.tuning.chain.network import NetworkChain
from shoal.tasks.tuning.chain.parts import names_of
from shoal.tasks.tuning.defaults import (
    PART_POSITIONS,
    READ_S,
    TUNING_IDLE,
    TUNINGS_PER_PEER,
    USUAL,
)
from shoal.tasks.tuning.interface import AdapterTensors, Batch, Gradients, TensorName
from shoal.tasks.tuning.messages import (
    FRAME_HEAD,
    RunPass,
    Said,
    SetTensors,
    TuneClose,
    TuneOpen,
    frame,
    frame_size,
    parse_frame,
)
from shoal.tasks.tuning.stage.stage import read_exactly, send_all
from shoal.transport.errors import CallRefused
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Priority
from shoal.transport.link.serving import IncomingStream
from shoal.transport.link.stream import Stream
from tests.marks import in_ci

TINY = Path(__file__).parents[3] / "shoal" / "models" / "tiny"
ARCH = architecture(json.loads((TINY / "config.json").read_text()))
LAYERS = tuple(range(ARCH.layers))
Body = Callable[[World], Awaitable[Any]]


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(2000):
            return await body(world)

    return world.run(main)


def adapter(rank: int = 4, seed: int = 1, layers: tuple[int, ...] = LAYERS) -> AdapterTensors:
    modules: tuple[Module, ...] = ("q_proj", "v_proj", "down_proj")
    terms = AdapterTerms(EMBEDDED_ROOT, rank, 8.0, False, "F32", modules, layers)
    rng, tensors = np.random.default_rng(seed), {}
    for name in names_of(terms, Parts(True, 0, ARCH.layers, True)):
        outputs, inputs = module_shapes(ARCH)[name.module]
        shape = (rank, inputs) if name.side == "A" else (outputs, rank)
        tensors[name] = rng.standard_normal(shape, np.float32) * np.float32(0.05)
    return AdapterTensors(terms, tensors)


def batch(rows: int = 6, length: int = 12) -> Batch:
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, ARCH.vocab, (rows, length)).astype(np.int32)
    targets = np.roll(tokens, -1, 1)
    targets[:, -1] = -1
    return Batch(tokens, targets)


def equal(one: Gradients, other: Gradients) -> bool:
    return (one.loss, one.counted) == (other.loss, other.counted) and all(
        np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors
    )


async def swarm(world: World, *layers: tuple[int, int], **settings: Any) -> list[DaemonHandle]:
    """Start a daemon for each range of layers, and at the end a trainer without an engine."""
    found: list[DaemonHandle] = []
    for index, each in enumerate(layers):
        host = world.host(f"stage{index}")
        found.append(await host.start(layers=each, bootstrap=found[:1], model="tiny", **settings))
    for daemon in found:
        await daemon.serving()
    trainer = await world.host("trainer").start(bootstrap=found[:1], engine=False)
    while len(shards(trainer)) < len(layers):  # noqa: ASYNC110
        await trio.sleep(0.1)
    await trainer.until(lambda status: status["peers"] == len(layers))
    return [*found, trainer]


def shards(daemon: DaemonHandle) -> list[Any]:
    records = daemon.node.directory.members().values()
    return [shard for record in records for shard in record.shards]


def chain_of(daemon: DaemonHandle) -> NetworkChain:
    return daemon.node.compute.tuning.chain(EMBEDDED_ROOT, ARCH)


def test_three_stages_compute_for_a_trainer_without_an_engine() -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 2), (2, 4), (4, 6))
        chain = chain_of(trainer)
        found = await chain.gradients(batch(), adapter())
        assert chain.peers == tuple(stage.peer for stage in stages)
        assert found.counted == 6 * 11 and found.loss > 0
        assert set(found.tensors) == set(adapter().tensors)
        assert all(each.any() for each in found.tensors.values())
        assert equal(found, await chain.gradients(batch(), adapter()))
        changed = await chain.gradients(batch(), adapter(seed=2))
        assert not equal(found, changed), "each stage got the new tensors"
        some = [name for name in adapter().tensors if name.side == "B" and name.layer == 3]
        assert set((await chain.gradients(batch(), adapter(), some)).tensors) == set(some)
        loss, counted = await chain.loss(batch(), adapter())
        assert counted == found.counted and loss > 0
        for stage in stages:
            assert stage.node.compute.tuning_stage.tunings == 1
            assert (await stage.engine.usage())["tunings"] == 1
        await chain.aclose()
        await trio.sleep(1)
        for stage in stages:
            assert stage.node.compute.tuning_stage.tunings == 0
            usage = await stage.engine.usage()
            assert usage["tunings"] == usage["tuning_bytes"] == 0

    run(body)


def test_this_node_s_own_shard_is_a_stage() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alone").start()
        await daemon.serving()
        chain = chain_of(daemon)
        found = await chain.gradients(batch(), adapter())
        assert chain.peers == (daemon.peer,) and found.counted == 66
        assert equal(found, await chain.gradients(batch(), adapter()))
        await chain.aclose()

    run(body)


def test_the_author_of_a_job_pays_for_its_passes() -> None:
    """Once its trainer's claim is here, which may be after the first request. A trainer without a
    claim pays itself."""

    async def body(world: World) -> None:
        stage, trainer = await swarm(world, (0, 6))
        author, nonce = Identity.from_seed(bytes([9]) * 32).peer, b"n" * 16
        jobs = stage.node.state.views.jobs
        job = Job(job_id(author, nonce), author, "finetune", b"spec")
        claim = new_claim(trainer.peer, job.id, 1)

        opening, orders = stage.engine.open_tuning, list[OpenTuning]()

        async def watched(name: bytes, order: OpenTuning) -> None:
            orders.append(order)
            await opening(name, order)

        stage.engine.open_tuning = watched  # type: ignore[method-assign,assignment]

        async def computed(name: str) -> None:
            chain = trainer.node.compute.tuning.chain(EMBEDDED_ROOT, ARCH, job=name)
            await chain.gradients(batch(), adapter())
            (tuning,) = stage.node.compute.tuning_stage.table
            payers.append((tuning.payer, orders[-1].owner))
            await chain.aclose()
            await trio.sleep(1)

        async def arrive() -> None:
            await trio.sleep(2)
            jobs.changed(FeedName(author, "jobs", 0), job.id, job_fact(job, nonce))
            jobs.changed(FeedName(trainer.peer, "claims", 0), job.id, claim_fact(claim))

        payers = list[tuple[str, str]]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await computed(job.id)
        assert payers == [(author, author)]
        await computed("ab" * 32)
        await computed("")
        better = claim_fact(new_claim(stage.peer, job.id, 2))
        jobs.changed(FeedName(stage.peer, "claims", 0), job.id, better)
        await computed(job.id)  # by a claim that does not count
        assert payers[1:] == [(trainer.peer, trainer.peer)] * 3
        stage.node.working.write_usage()
        await trio.sleep(5)
        usage = stage.node.state.views.usage
        asked = {peer: usage.of(peer)[stage.peer, EMBEDDED_ROOT].requests
                 for peer in usage.clients()}  # fmt: skip
        assert asked == {author: 1, trainer.peer: 3}

    run(body)


def test_a_shard_that_leaves_while_a_claim_is_awaited_gets_no_tuning() -> None:
    async def body(world: World) -> None:
        stage, trainer = await swarm(world, (0, 6))
        opened = list[OpenTuning]()

        async def watched(name: bytes, order: OpenTuning) -> None:
            opened.append(order)

        stage.engine.open_tuning = watched  # type: ignore[method-assign,assignment]

        async def leave() -> None:
            await trio.sleep(1)
            stage.node.compute.serving.bar("its owner plays a game")

        parts, terms = Parts(True, 0, ARCH.layers, True), adapter().terms
        message = TuneOpen(b"t" * 16, EMBEDDED_ROOT, parts, "float32", terms, "ab" * 32)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            with pytest.raises(SessionError) as error:
                await stage.node.compute.tuning_stage.open(trainer.peer, message)
        assert error.value.code == "no-shard" and not opened

    run(body)


@pytest.mark.parametrize("how", ["crash", "worker", *in_ci("hang", "refuse")])
def test_a_stage_that_fails_in_the_middle_of_a_step_is_replaced(how: str) -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        wanted = await chain.gradients(batch(), adapter())
        victim = next(stage for stage in stages if stage.peer == chain.peers[1])
        engine, calls = victim.engine, 0
        tune = engine.tune

        async def failing(*arguments: Any) -> PassDone:
            nonlocal calls
            calls += 1
            if calls == 2:
                if how == "crash":
                    await victim.host.crash()
                elif how == "hang":
                    engine.hang()
                elif how == "worker":
                    engine.crash()
                else:
                    raise SessionError("no-shard", "no longer")
            return await tune(*arguments)

        engine.tune = failing  # type: ignore[method-assign,assignment]
        began = trio.current_time()
        found = await chain.gradients(batch(), adapter())
        assert calls >= 2 and chain.replaced == 1 and trio.current_time() - began < 60
        assert chain.peers[1] != victim.peer and equal(found, wanted)
        await chain.aclose()

    run(body)


def test_without_another_replica_the_error_has_a_code() -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6))
        chain = chain_of(trainer)
        await chain.gradients(batch(), adapter())
        await stages[1].host.crash()
        with pytest.raises((NoRoute, SessionError)):
            await chain.gradients(batch(), adapter())
        await chain.aclose()

    run(body)


def times(factor: float) -> Callable[[bytes], bytes]:
    def lie(data: bytes) -> bytes:
        return (np.frombuffer(data, np.float32) * np.float32(factor)).tobytes()

    return lie


LIES: dict[str, Callable[[bytes], bytes]] = {
    "not finite": times(np.nan),
    "infinite": lambda data: b"\0\0\x80\x7f" + data[4:],
    "a million times too large": times(1e6),
    "beyond any norm": times(1e25),
    "too short": lambda data: data[:-4],
    "too long": lambda data: data + b"\0\0\0\0",
    "nothing": lambda data: b"",
}
SOME_LIES = ("not finite", "too short")


@pytest.mark.parametrize(
    "kind", [*SOME_LIES, *in_ci(*(kind for kind in LIES if kind not in SOME_LIES))]
)
def test_a_stage_that_lies_is_replaced(kind: str) -> None:
    """The trainer checks what comes back."""

    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        wanted = await chain.gradients(batch(), adapter())
        for _ in range(3):  # the usual norms are known then
            await chain.gradients(batch(), adapter())
        liar = next(stage for stage in stages if stage.peer == chain.peers[1])
        tune = liar.engine.tune

        async def lying(name: bytes, order: PassOrder, data: Any) -> PassDone:
            done = await tune(name, order, data)
            found = LIES[kind](bytes(done.data))
            return PassDone(done.loss, done.counted, done.seconds, done.predicted, found)

        liar.engine.tune = lying  # type: ignore[method-assign,assignment]
        found = await chain.gradients(batch(), adapter())
        assert liar.peer not in chain.peers and chain.replaced == 1 and equal(found, wanted)
        await chain.aclose()

    run(body)


class Attacker:
    """A member that sends what it likes to one stage."""

    def __init__(self, daemon: DaemonHandle, stage: DaemonHandle) -> None:
        self.courier = daemon.node.network.courier
        self.stage = stage
        self.parts = Parts(True, 0, 3, False)
        self.sizes = [each.size for each in self._tensors().values()]
        self.data = b"".join(each.tobytes() for each in self._tensors().values())

    @staticmethod
    def _tensors() -> dict[TensorName, Any]:
        return {name: each for name, each in adapter().tensors.items() if name.layer < 3}

    async def open(self, name: bytes, **changes: Any) -> None:
        message = TuneOpen(name, EMBEDDED_ROOT, self.parts, "float32", adapter().terms)
        header = {**message.header(), **changes}
        await self.courier.call(self.stage.peer, "tune.open", header, timeout=20)

    async def stream(self, method: str, header: dict[str, object], *data: bytes) -> Said:
        """Send a stream, and return the last frame of the answer."""
        stream = await self.courier.open_stream(self.stage.peer, method, header, Priority.BULK)
        try:
            for each in data:
                await send_all(stream, each)
            while True:
                size = frame_size(bytes(await read_exactly(stream, FRAME_HEAD, 500)))
                said = parse_frame(bytes(await read_exactly(stream, size, 500)))
                if said.kind not in ("busy", "send"):
                    return said
        finally:
            stream.reset("closed")

    async def set(
        self, name: bytes, data: bytes | None = None, digest: bytes | None = None
    ) -> Said:
        data = self.data if data is None else data
        digest = hashlib.sha256(data).digest() if digest is None else digest
        self.digest = digest
        return await self.stream("tune.set", SetTensors(name, digest).header(), data)

    def order(self, **changes: Any) -> PassOrder:
        values: dict[str, Any] = {
            "part": 1, "rows": 2, "length": 5, "back": False, "given": True, "keep": True,
            "down": True, "wire": "float32", "wanted": b"\1" * len(self.sizes), **changes,
        }  # fmt: skip
        return PassOrder(**values)

    async def tune(self, name: bytes, *data: bytes, **changes: Any) -> Said:
        header = RunPass(name, self.digest, self.order(**changes)).header()
        return await self.stream("tune.pass", header, *data)


NAME = b"n" * 16
TOKENS = bytes(4 * 10)


def hostile(test: Callable[[Attacker], Awaitable[None]]) -> None:
    """Run a test of an attacker, and show that the stage still serves others."""

    async def body(world: World) -> None:
        stage, other, trainer = await swarm(world, (0, 3), (3, 6))
        attacker = Attacker(trainer, stage)
        await test(attacker)
        honest = chain_of(other)
        found = await honest.gradients(batch(), adapter())
        assert found.counted == 66 and honest.replaced == 0
        await honest.aclose()

    run(body)


OPENS: list[tuple[dict[str, Any], str]] = [
    ({"root": "cd" * 32}, "bad-message"),  # the adapter is of another model
    ({"parts": (True, 0, 2, False)}, "no-shard"),
    ({"parts": (True, 3, 2, False)}, "bad-message"),
    ({"dtype": "float64"}, "bad-message"),
    ({"tuning": b"short"}, "bad-message"),
    ({"terms": ()}, "bad-message"),
    ({"terms": (EMBEDDED_ROOT, 10_000, 8.0, False, "F32", ("q_proj",), (0,))}, "bad-message"),
    ({"terms": (EMBEDDED_ROOT, 4, 8.0, False, "BF16", ("q_proj",), (0,))}, "bad-message"),
    ({"terms": (EMBEDDED_ROOT, 4, 8.0, False, "F32", ("qkv_proj",), (0,))}, "bad-adapter"),
    ({"terms": (EMBEDDED_ROOT, 4, 1e300, False, "F32", ("q_proj",), (0,))}, "bad-message"),
]


def test_a_malformed_open_is_refused() -> None:
    async def test(attacker: Attacker) -> None:
        for changes, code in OPENS:
            with pytest.raises(CallRefused) as refused:
                await attacker.open(NAME, **changes)
            assert refused.value.code == code, changes

    hostile(test)


def test_a_tuning_that_reads_texts_has_no_backward_passes() -> None:
    """Any job that its trainer claims is charged, also if another claim counts."""

    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME, reads=True)
        assert (await attacker.set(NAME)).kind == "done"
        assert (await attacker.tune(NAME, TOKENS, back=False)).kind == "done"
        said = await attacker.tune(NAME, TOKENS, back=True)
        assert (said.kind, said.code) == ("refused", "bad-request")

    hostile(test)


@pytest.mark.ci
def test_tunings_of_one_trainer_are_bounded_and_end() -> None:
    async def test(attacker: Attacker) -> None:
        for number in range(TUNINGS_PER_PEER):
            await attacker.open(bytes([number]) * 16)
        with pytest.raises(CallRefused) as refused:
            await attacker.open(NAME)
        assert refused.value.code == "too-many"
        with pytest.raises(CallRefused) as refused:
            await attacker.open(bytes(16))
        assert refused.value.code == "session-exists"
        stage = attacker.stage.node.compute.tuning_stage
        await attacker.courier.call(
            attacker.stage.peer, "tune.close", TuneClose(bytes(16)).header(), timeout=5
        )
        assert stage.tunings == TUNINGS_PER_PEER - 1
        await trio.sleep(1.2 * TUNING_IDLE)
        assert stage.tunings == 0
        assert (await attacker.stage.engine.usage())["tunings"] == 0

    hostile(test)


def test_tensors_are_those_of_their_hash_and_finite() -> None:
    async def test(attacker: Attacker) -> None:
        said = await attacker.stream("tune.set", SetTensors(NAME, bytes(32)).header())
        assert said.code == "unknown-session"
        await attacker.open(NAME)
        assert (await attacker.set(NAME, digest=bytes(32))).code == "bad-adapter"
        said = await attacker.tune(NAME, TOKENS)
        assert said.code == "stale", "the stage has no tensors"
        assert (await attacker.set(NAME)).kind == "done"
        assert (await attacker.tune(NAME, TOKENS)).kind == "done"
        attacker.digest = bytes(32)
        assert (await attacker.tune(NAME, TOKENS)).code == "stale"

    hostile(test)


PASSES: list[tuple[dict[str, Any], bytes, str]] = [
    ({"rows": 0}, TOKENS, "bad-message"),
    ({"rows": 10**9, "length": 10**9}, TOKENS, "bad-message"),
    ({"rows": 100, "length": 100}, TOKENS, "bad-message"),
    ({"rows": 1, "length": ARCH.context + 1}, TOKENS, "too-long"),
    ({"wanted": b"\1"}, TOKENS, "bad-message"),
    ({"wanted": b"\2" * 18}, TOKENS, "bad-message"),
    ({"wire": "float16"}, TOKENS, "bad-message"),
    ({"given": False}, b"", "bad-message"),
    ({"back": True, "given": False, "part": 77}, bytes(4 * 10 * 256), "no-input"),
]


def test_a_malformed_pass_is_refused() -> None:
    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        await attacker.set(NAME)
        for changes, data, code in PASSES:
            assert (await attacker.tune(NAME, data, **changes)).code == code, changes
            assert (await attacker.tune(NAME, TOKENS)).kind == "done"

    hostile(test)


def test_a_trainer_that_sends_nothing_is_given_up() -> None:
    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        began = trio.current_time()
        header = SetTensors(NAME, bytes(32)).header()
        assert (await attacker.stream("tune.set", header)).code == "timeout"
        await attacker.set(NAME)
        assert (await attacker.tune(NAME, TOKENS[:-1])).code == "timeout"
        assert trio.current_time() - began < 2.5 * READ_S
        stage = attacker.stage.node.compute.tuning_stage
        assert not stage.table._bytes, "the memory of both is free again"

    hostile(test)


def test_passes_and_bytes_of_one_trainer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        await attacker.set(NAME)
        codes = list[str]()

        async def one() -> None:
            codes.append((await attacker.tune(NAME, TOKENS[:-1])).code)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert codes.count("busy") == 4 and codes.count("timeout") == 16
        monkeypatch.setattr("shoal.tasks.tuning.stage.opened.PEER_BYTES", 100)
        assert (await attacker.tune(NAME, TOKENS)).code == "busy"
        monkeypatch.undo()

    hostile(test)


def test_sizes_of_a_pass() -> None:
    """The input of a pass is read only up to the size that its order implies."""
    order = PassOrder(1, 2, 5, True, True, True, True, "bfloat16", b"\1\0")
    sizes = pass_sizes(order, Parts(False, 0, 1, False), 8, [10, 100])
    assert sizes == (2 * 5 * 8 * 2, 0, 160, 160 + 40)
    head = pass_sizes(order, Parts(True, 0, 1, True), 8, [10, 100])
    assert head == (40, 40, 0, 40)
    forward = PassOrder(1, 2, 5, False, True, True, True, "float32", b"\0\0")
    assert pass_sizes(forward, Parts(False, 0, 1, False), 8, [10, 100]) == (320, 0, 0, 320)


async def _open_in(attacker: Attacker) -> int:
    """Return the number of tunings that the engine of the stage has."""
    await trio.sleep(5)
    return int((await attacker.stage.engine.usage())["tunings"])


def test_opening_one_name_many_times_leaves_nothing_in_the_engine() -> None:
    async def test(attacker: Attacker) -> None:
        codes = list[str]()

        async def one() -> None:
            try:
                await attacker.open(NAME)
                codes.append("ok")
            except CallRefused as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
        assert sorted(codes) == ["ok", *3 * ["session-exists"]]
        await attacker.courier.call(
            attacker.stage.peer, "tune.close", TuneClose(NAME).header(), timeout=20
        )
        assert await _open_in(attacker) == 0

    hostile(test)


def test_a_trainer_that_does_not_wait_for_its_tuning_leaves_nothing() -> None:
    async def body(world: World) -> None:
        stage, _, trainer = await swarm(world, (0, 3), (3, 6))
        attacker, open_tuning = Attacker(trainer, stage), stage.engine.open_tuning

        async def slow(*arguments: Any) -> None:
            await open_tuning(*arguments)
            await trio.sleep(60)

        stage.engine.open_tuning = slow  # type: ignore[method-assign,assignment]
        with trio.move_on_after(2):
            await attacker.open(NAME)
        await trio.sleep(200)
        assert stage.node.compute.tuning_stage.tunings == await _open_in(attacker) == 0

    run(body)


def test_a_trainer_that_takes_no_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would occupy the memory of tensors that it never sends."""
    send = Stream.send

    async def stuck(stream: Stream, data: bytes) -> None:
        if b"send" in data[:40]:
            await trio.sleep_forever()
        await send(stream, data)

    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "send", stuck)
            assert (await attacker.set(NAME)).code == "timeout"
        assert not attacker.stage.node.compute.tuning_stage.table._bytes

    hostile(test)


def test_announced_bytes_are_not_allocated_before_they_arrive() -> None:
    class Silent:
        async def receive(self, size: int) -> bytes:
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
            return b""

    async def main() -> None:
        with pytest.raises(BadMessage):
            await read_exactly(Silent(), 1 << 28)  # type: ignore[arg-type]

    tracemalloc.start()
    try:
        trio.run(main)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", ["tune.pass", *in_ci("tune.set")])
def test_a_stage_that_only_shows_signs_of_life_is_replaced(method: str) -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        wanted = await chain.gradients(batch(), adapter(seed=2))
        victim = next(stage for stage in stages if stage.peer == chain.peers[1])

        async def lively(incoming: IncomingStream) -> None:
            while True:
                await incoming.stream.send(frame(Said("busy")))
                await trio.sleep(1)

        victim.node.network.courier.handle_stream(method, lively)
        await chain.gradients(batch(), adapter())
        assert victim.peer not in chain.peers and chain.replaced == 1
        assert equal(wanted, await chain.gradients(batch(), adapter(seed=2)))
        await chain.aclose()

    run(body)


def test_a_stage_without_memory_makes_the_parts_of_others_not_small_for_ever() -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        wanted = await chain.gradients(batch(64, 24), adapter())
        liar = next(stage for stage in stages if stage.peer == chain.peers[1])
        asked = 0

        async def full(*arguments: Any) -> PassDone:
            nonlocal asked
            asked += 1
            raise EngineError("no-memory", "there is none")

        liar.engine.tune = full  # type: ignore[method-assign,assignment]
        found = await chain.gradients(batch(64, 24), adapter())
        assert asked and liar.peer not in chain.peers
        assert equal(found, wanted) and chain._positions == PART_POSITIONS
        await chain.aclose()

    run(body)


def test_a_stage_that_stops_begins_no_more_passes() -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        await chain.gradients(batch(), adapter())
        victim = next(stage for stage in stages if stage.peer == chain.peers[1])
        tune, began = victim.engine.tune, trio.Event()

        async def slow(*arguments: Any) -> PassDone:
            began.set()
            await trio.sleep(5)
            return await tune(*arguments)

        victim.engine.tune = slow  # type: ignore[method-assign,assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chain.gradients, batch(), adapter())
            await began.wait()
            assert victim.node._is_busy()
            victim.node.compute.tuning_stage.leave()
            await trio.sleep(6)
            assert not victim.node._is_busy()
        assert victim.peer not in chain.peers
        await chain.aclose()

    run(body)


def test_norms_are_believed_by_what_was_usual() -> None:
    usual = UsualNorms()
    with pytest.raises(SessionError):
        usual.check(1.1e6 * 10, 10)
    for _ in range(USUAL):
        usual.check(10.0, 1)
    usual.check(9e3, 1)
    with pytest.raises(SessionError):
        usual.check(1.1e4, 1)
    nothing = UsualNorms()
    for _ in range(USUAL):
        nothing.check(0.0, 1)
    nothing.check(0.5, 1)
    with pytest.raises(SessionError):
        nothing.check(1.5, 1)


@pytest.mark.parametrize(
    ("loss", "counted"),
    [
        (float("nan"), None),
        (1.0, 7),
        *in_ci((-1.0, None), (1e9, None), (1.0, 2**40)),
    ],
)
def test_a_head_that_lies_about_the_loss_is_replaced(loss: float, counted: int | None) -> None:
    async def body(world: World) -> None:
        *stages, trainer = await swarm(world, (0, 3), (3, 6), (3, 6))
        chain = chain_of(trainer)
        wanted = await chain.loss(batch(), adapter())
        liar = next(stage for stage in stages if stage.peer == chain.peers[1])
        tune = liar.engine.tune

        async def lying(name: bytes, order: PassOrder, data: Any) -> PassDone:
            done = await tune(name, order, data)
            said = done.counted if counted is None else counted
            return PassDone(loss, said, done.seconds, done.predicted, done.data)

        liar.engine.tune = lying  # type: ignore[method-assign,assignment]
        assert await chain.loss(batch(), adapter()) == wanted
        assert liar.peer not in chain.peers and chain.replaced == 1
        await chain.aclose()

    run(body)


def test_the_tunings_of_a_trainer_that_crashed_are_closed() -> None:
    async def body(world: World) -> None:
        stage, _, trainer = await swarm(world, (0, 3), (3, 6))
        attacker = Attacker(trainer, stage)
        await attacker.open(NAME)
        await trainer.host.crash()
        await trio.sleep(TUNING_IDLE / 3)
        assert stage.node.compute.tuning_stage.tunings == await _open_in(attacker) == 0

    run(body)


def test_a_trainer_that_does_not_take_its_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.tasks.tuning.stage.stage.WRITE_S", 5.0)
    send = Stream.send

    async def stuck(stream: Stream, data: bytes) -> None:
        if b"done" in data[:40]:
            await trio.sleep_forever()
        await send(stream, data)

    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        await attacker.set(NAME)
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "send", stuck)
            assert (await attacker.tune(NAME, TOKENS)).code == "timeout"
        assert not attacker.stage.node.compute.tuning_stage.table._bytes

    hostile(test)


def test_tensors_are_not_replaced_during_a_pass() -> None:
    """Its derivatives would be those of other tensors than the trainer believes."""

    async def test(attacker: Attacker) -> None:
        await attacker.open(NAME)
        await attacker.set(NAME)
        codes = list[str]()

        async def begin() -> None:
            codes.append((await attacker.tune(NAME, TOKENS[:-1])).code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            await trio.sleep(5)
            digest, other = attacker.digest, bytes(len(attacker.data))
            assert (await attacker.set(NAME, other)).code == "busy"
            attacker.digest = digest
        assert codes == ["timeout"] and (await attacker.tune(NAME, TOKENS)).kind == "done"

    hostile(test)
