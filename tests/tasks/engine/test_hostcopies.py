"""Sessions whose KV leaves its device for host memory and comes back with the same bits.

The device is the CPU, which claims to have memory of its own.
"""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from shoal.netsim.daemons.compute import NumberCompute
from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.tasks.engine.compute.device import ComputeDevice
from shoal.tasks.engine.defaults import HOST_PART, HOST_WAIT_S
from shoal.tasks.engine.families import architecture, kv_token_bytes
from shoal.tasks.engine.interface import FailedEvent, SessionTerms, Span, TokenEvent
from shoal.tasks.engine.kv.blocks import BLOCK, BlockPool, BlockTable
from shoal.tasks.engine.kv.hostcopies import HostCopies, HostCopy
from tests.netsim.daemons.shards import CONTEXT
from tests.netsim.daemons.shards import shard as simulated_shard
from tests.netsim.daemons.test_engine import Session, on_engine
from tests.tasks.engine.test_batch import (
    Talk,
    alone,
    blocks_are_counted,
    ids,
    opened,
    result,
    worker_of,
)


class OwnMemory(ComputeDevice):
    """The CPU as a device whose memory is not the host's."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.has_own_memory = True


DEVICE = OwnMemory()


def device_worker(shard: Any, driver: Any, blocks: int) -> Any:
    """Return a worker on such a device, which counts the copies after each step."""
    worker = worker_of(shard, driver, blocks=blocks)
    worker.shard.compute.device = DEVICE
    step = worker.step

    def counted() -> None:
        step()
        copies_are_counted(worker)

    worker.step = counted
    return worker


def copies(worker: Any) -> HostCopies:
    found: HostCopies = worker.core.runner.room.copies
    return found


def copies_are_counted(worker: Any) -> None:
    """Compare what is counted with what the sessions have. Blocks are counted apart."""
    blocks_are_counted(worker)
    assert worker.shard.pool.promised == sum(
        each.table.promised for each in worker.core.sessions.values()
    )
    sizes = 0
    for each in worker.core.sessions.values():
        if each.copy is not None:
            assert not each.table.blocks and not each.table.promised
            assert each.copy.size == each.table.length * worker.shard.token_bytes
            sizes += each.copy.size
    assert copies(worker).used == sizes
    assert worker.request("usage")[1]["kv_bytes_copied"] == sizes


def open_soon(worker: Any, name: bytes, owner: str = "g") -> bytes:
    name = name.ljust(16, b".")
    reply = worker.request("open", name, 96, owner, False, b"", 0, 16, "")
    assert reply[:2] == ("ok", 0), reply
    return name


@pytest.fixture(scope="module")
def small(checkpoint: Any) -> Any:
    return checkpoint("Llama")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_idle_session_leaves_and_comes_back_with_the_same_bits(
    small: Any, driver: Any, dtype: Any
) -> None:
    shard = small.shard(dtype=dtype)
    first, second = Talk(1, 40), Talk(2, 40)
    expected = alone(shard, driver, first), alone(shard, driver, second)
    worker = device_worker(shard, driver, blocks=6)
    name = open_soon(worker, b"first")
    head, *rest = first.spans(name)
    worker.submit(head)
    events = list(worker.events())
    assert second.run(worker, open_soon(worker, b"second")) == expected[1]
    session = worker.core.runner.find(name)
    assert session.copy is not None and copies(worker).used == 40 * worker.shard.token_bytes
    for span in rest:
        worker.submit(span)
    events += worker.events()
    assert session.copy is None and result(events, name) == expected[0]
    copies_are_counted(worker)
    assert worker.request("close", name)[0] == "ok"
    assert worker.request("close", b"second".ljust(16, b"."))[0] == "ok"
    assert copies(worker).used == 0 and worker.shard.pool.promised == 0


@pytest.mark.parametrize("own", [True, False])
def test_texts_that_do_not_fit_together_wait_and_none_fails(
    small: Any, driver: Any, own: bool
) -> None:
    """On a device whose memory is the host's, one of them ends."""
    shard = small.shard()
    talks = [Talk(seed, 30, steps=40) for seed in range(4)]
    expected = [alone(shard, driver, talk) for talk in talks]
    worker = device_worker(shard, driver, blocks=9)
    if not own:
        worker.shard.compute.device = ComputeDevice("cpu")
    names = [open_soon(worker, b"session %d" % talk.seed) for talk in talks]
    for name, talk in zip(names, talks, strict=True):
        for span in talk.spans(name):
            worker.submit(span)
    events = worker.events()
    failed = [event for event in events if isinstance(event, FailedEvent)]
    assert bool(failed) == (not own)
    if own:
        assert [result(events, name) for name in names] == expected


def test_many_sessions_in_any_order_equal_those_alone(small: Any, driver: Any) -> None:
    shard, random = small.shard(), Random(5)
    talks = [Talk(seed, random.randrange(5, 60), cuts=(17,)) for seed in range(8)]
    expected = [alone(shard, driver, talk) for talk in talks]
    worker = device_worker(shard, driver, blocks=10)
    names = [open_soon(worker, b"session %d" % talk.seed, f"g{talk.seed % 3}") for talk in talks]
    spans = [talk.spans(name) for name, talk in zip(names, talks, strict=True)]
    events, most = [], 0
    while any(spans):
        for _ in range(random.randrange(1, 4)):
            waiting = [each for each in spans if each]
            if waiting:
                worker.submit(random.choice(waiting).pop(0))
        for _ in range(random.randrange(3)):
            if worker.core.busy:
                worker.step()
        most = max(most, copies(worker).used)
    events += worker.events()
    assert [result(events, name) for name in names] == expected
    assert most > 2 * BLOCK * worker.shard.token_bytes
    for name in names:
        worker.request("close", name)
    assert copies(worker).used == 0 and not worker.core.runner.room._returning


def test_the_copies_are_bounded_and_beyond_that_sessions_end(
    small: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fit, and a third one only if one of them has left."""
    worker, events = device_worker(small.shard(), driver, blocks=8), list[Any]()
    limit = 50 * worker.shard.token_bytes
    monkeypatch.setattr(worker.core, "_memory_bytes", limit)

    def ended(seed: int) -> int:
        name = open_soon(worker, b"session %d" % seed)
        worker.submit(Talk(seed, 40).spans(name)[0])
        events.extend(worker.events())
        assert copies(worker).used <= limit
        return sum(isinstance(event, FailedEvent) for event in events)

    assert [ended(seed) for seed in range(4)] == [0, 0, 1, 2]
    assert copies(worker).used == 40 * worker.shard.token_bytes
    monkeypatch.setattr(worker.core, "_memory_bytes", 0)
    monkeypatch.setattr(worker.core, "host_available_bytes", lambda: int(30 / HOST_PART))
    assert ended(4) == 3


def left(worker: Any) -> tuple[bytes, bytes]:
    """Return two sessions, of which the first one has left for the other one."""
    first, second = open_soon(worker, b"first"), open_soon(worker, b"second")
    for seed, name in enumerate((first, second)):
        worker.submit(Talk(seed, 60).spans(name)[0])
        worker.events()
    assert worker.core.runner.find(first).copy is not None
    return first, second


def test_copies_go_with_their_sessions_and_their_shard(small: Any, driver: Any) -> None:
    worker = device_worker(small.shard(), driver, blocks=6)
    first, second = left(worker)
    names = bytes(range(48))
    assert worker.request("close", first, payload=names)[0] == "ok" and copies(worker).used == 0
    assert worker.request("close", second)[0] == "ok"
    left(worker)
    assert copies(worker).used > 0
    assert worker.request("unload", 0)[0] == "ok" and copies(worker).used == 0


def test_a_session_that_left_is_exported_read_and_forked_as_before(small: Any, driver: Any) -> None:
    worker = device_worker(small.shard(), driver, blocks=6)
    whole = device_worker(small.shard(), driver, blocks=60)
    first, second = left(worker)
    same = open_soon(whole, b"first")
    whole.submit(Talk(0, 60).spans(same)[0])
    whole.events()
    expected = whole.request("export", same)[2]
    reply = worker.request("export", first)
    assert reply[0] == "ok" and bytes(reply[2]) == bytes(expected)
    assert worker.core.runner.find(second).copy is not None
    assert worker.request("fork", second, first)[1] == "no-memory"
    copies_are_counted(worker)


def test_a_session_waits_for_blocks_only_so_long(
    small: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, now = device_worker(small.shard(), driver, blocks=6), [0.0]
    monkeypatch.setattr(worker.core, "clock", lambda: now[0])
    worker.core.runner.room._clock = lambda: now[0]
    first, second = left(worker)
    worker.submit(Span(second, 0, 60, 1, tokens=(5,), want="token", steps=30))
    worker.step()
    worker.submit(Span(first, 0, 60, 1, tokens=(5,), want="token", steps=3))
    worker.step()
    assert worker.core.runner.find(first).busy and worker.core.runner.find(first).copy
    now[0] += HOST_WAIT_S
    worker.step()
    assert first not in worker.core.sessions and copies(worker).used == 0
    (failed,) = [each for each in worker.events() if isinstance(each, FailedEvent)]
    assert failed.session == first and failed.code == "preempted"


def test_a_cancelled_session_that_waits_stays_in_host_memory(small: Any, driver: Any) -> None:
    worker = device_worker(small.shard(), driver, blocks=6)
    first, second = left(worker)
    worker.submit(Span(second, 0, 60, 1, tokens=(5,), want="token", steps=30))
    worker.step()
    worker.submit(Span(first, 0, 60, 1, tokens=(5,), want="token", steps=3))
    worker.core.handle(("cancel", first), memoryview(b""))
    events = worker.events()
    assert sum(isinstance(each, TokenEvent) for each in events) == 30
    assert worker.core.runner.find(first).copy is not None
    worker.submit(Span(first, 1, 60, 1, tokens=(5,), want="token", steps=3))
    assert sum(isinstance(each, TokenEvent) for each in worker.events()) == 3


def test_named_blocks_stay_cached_while_their_session_is_away(small: Any, driver: Any) -> None:
    worker = device_worker(small.shard(), driver, blocks=8)
    tokens = ids(3, 48)
    name = b"named".ljust(16, b".")
    assert opened(worker, name, 50, tokens) == 0
    worker.submit(Span(name, 0, 0, 48, tokens=tokens, want="logits"))
    worker.events()
    session = worker.core.runner.find(name)
    assert worker.core.runner.room._leave(session)
    assert worker.shard.pool.cached == 3
    assert opened(worker, b"other".ljust(16, b"."), 50, tokens) == 48
    with torch.inference_mode():
        worker.core.runner.fetch(session)
    copies_are_counted(worker)
    assert worker.request("close", name)[0] == "ok"
    copies_are_counted(worker)


def test_a_table_leaves_and_comes_back() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, 100, soon=40)
    table.prepare(0, 40)
    table.fill(40)
    table.leave()
    assert (pool.free, pool.promised, table.length) == (8, 0, 40)
    table.come_back()
    assert (pool.used, len(table.blocks), pool.promised) == (3, 3, 7)
    table.free()
    assert (pool.free, pool.promised) == (8, 0)


def test_copies_count() -> None:
    some = HostCopies(lambda: 10)
    assert some.take(10) and not some.take(1) and some.used == 10
    some.give_back(HostCopy(None, 10))
    assert some.used == 0


@pytest.mark.parametrize("own", [True, False])
def test_the_simulator_s_engine_does_the_same(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumberCompute, "has_own_memory", own)
    names = [b"session %d" % number for number in range(3)]
    names = [name.ljust(16, b".") for name in names]

    async def texts(engine: SimulatedEngine, host: SimulatedHost, together: bool) -> list[Any]:
        shard = simulated_shard(host.files)
        arch = architecture(shard.config)
        token = kv_token_bytes(arch, 0, arch.layers, shard.dtype)
        await engine.load(replace(shard, kv_bytes=token * BLOCK * 16))
        sessions = [Session() for _ in names]
        for number, (name, session) in enumerate(zip(names, sessions, strict=True)):
            terms = SessionTerms(f"g{number}", soon=16)
            await engine.open(name, CONTEXT - 60, session, terms)
            tokens = (number, 1, 4, 1, 5)
            engine.submit(Span(name, 0, 0, 5, tokens=tokens, want="token", steps=150))
            if not together:
                await session.came.wait()
                await engine.close(name)
        for session in sessions:
            while not any(
                isinstance(each, FailedEvent) or (isinstance(each, TokenEvent) and each.final)
                for each in session.events
            ):
                await session.came.wait()
        return [session.tokens for session in sessions]

    async def body(engine: SimulatedEngine, host: SimulatedHost) -> None:
        expected = await texts(engine, host, together=False)
        found = await texts(engine, host, together=True)
        assert (found == expected) == own

    on_engine(body)
