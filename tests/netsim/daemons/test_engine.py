"""The simulated engine behind the daemon's own code: `EngineProcess`, crashes, time."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.engine import SimulatedEngine
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import EngineEvent, FailedEvent, Span, TokenEvent
from tests.netsim.daemons.shards import CONTEXT, WHOLE, parts_of, shard

TOKENS = (3, 1, 4, 1, 5)
NAME = b"session.".ljust(16, b".")


def on_engine(body: Callable[[SimulatedEngine, SimulatedHost], Awaitable[Any]]) -> Any:
    """Run `body` with an engine on a simulated desktop."""
    world = World(seed=1)
    host = world.host("alice")

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            place = SimulatedHost(host, PROFILES["desktop"], nursery)
            engine = SimulatedEngine(place, 8, 1 << 30, "numbers")
            await nursery.start(engine.run)
            result = await body(engine, place)
            nursery.cancel_scope.cancel()
        return result

    return world.run(main)


class Session:
    """Collects the events of one session."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self.came = trio.Event()

    def __call__(self, event: EngineEvent) -> None:
        self.events.append(event)
        if isinstance(event, FailedEvent) or (isinstance(event, TokenEvent) and event.final):
            self.came.set()
            self.came = trio.Event()

    @property
    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, TokenEvent)]


def loop(steps: int, epoch: int = 0) -> Span:
    return Span(NAME, epoch, 0, 5, tokens=TOKENS, want="token", steps=steps)


def test_load_open_and_a_token_loop_take_virtual_time() -> None:
    async def body(engine: SimulatedEngine, host: SimulatedHost) -> list[float]:
        loaded = await engine.load(shard(host.files))
        assert loaded.weight_bytes > 0 and "export" in loaded.features
        session = Session()
        assert await engine.open(NAME, CONTEXT, session) == 0
        before = host.now()
        engine.submit(loop(20))
        assert session.events == [] and host.now() == before
        await session.came.wait()
        assert len(session.tokens) == 20 and session.tokens[0] != session.tokens[1]
        spent = host.now() - before
        assert spent >= 20 * PROFILES["desktop"].step_s
        seconds = [event.seconds for event in session.events if isinstance(event, TokenEvent)]
        assert sum(seconds) == pytest.approx(spent)
        usage = await engine.usage()
        assert usage["sessions"] == 1 and usage["rss_bytes"] > usage["weight_bytes"]
        await engine.close(NAME)
        assert (await engine.usage())["sessions"] == 0
        return seconds

    assert on_engine(body) == on_engine(body)


def test_a_crash_fails_the_sessions_and_a_new_worker_comes() -> None:
    async def body(engine: SimulatedEngine, host: SimulatedHost) -> None:
        again = trio.Event()
        engine.on_restart(again.set)
        await engine.load(shard(host.files))
        session, first = Session(), engine.pid
        await engine.open(NAME, CONTEXT, session)
        engine.submit(loop(200))
        await trio.sleep(0.005)
        before = host.now()
        engine.crash()
        await session.came.wait()
        assert 0 < len(session.tokens) < 200
        failed = session.events[-1]
        assert isinstance(failed, FailedEvent) and failed.code == "worker-crashed"
        assert "signal 9" in failed.message
        await again.wait()
        assert host.now() > before and engine.pid != first
        with pytest.raises(EngineError) as raised:
            await engine.open(NAME, CONTEXT, session)
        assert raised.value.code == "no-shard"
        await engine.load(shard(host.files))
        await engine.open(NAME, CONTEXT, session)

    on_engine(body)


def test_a_session_of_a_shard_that_was_replaced_fails() -> None:
    async def body(engine: SimulatedEngine, host: SimulatedHost) -> None:
        await engine.load(shard(host.files))
        session = Session()
        await engine.open(NAME, CONTEXT, session)
        await engine.load(shard(host.files, parts_of(0, 3)))
        (failed,) = session.events
        assert isinstance(failed, FailedEvent) and failed.code == "shard-replaced"
        with pytest.raises(EngineError):
            engine.submit(loop(1))

    on_engine(body)


def test_cancel_and_close_end_a_loop() -> None:
    async def body(engine: SimulatedEngine, host: SimulatedHost) -> None:
        await engine.load(shard(host.files, WHOLE))
        session = Session()
        await engine.open(NAME, CONTEXT, session)
        engine.submit(loop(200))
        await trio.sleep(0.005)
        engine.cancel(NAME)
        await session.came.wait()
        failed = session.events[-1]
        assert isinstance(failed, FailedEvent) and failed.code == "cancelled"
        said = len(session.events)
        engine.submit(loop(200, epoch=1))
        await trio.sleep(0.005)
        await engine.close(NAME)
        count = len(session.events)
        assert count > said
        await trio.sleep(1)
        assert len(session.events) == count

    on_engine(body)


def test_state_goes_from_one_engine_to_another() -> None:
    async def body(engine: SimulatedEngine, host: SimulatedHost) -> None:
        await engine.load(shard(host.files))
        session, other = Session(), Session()
        await engine.open(NAME, CONTEXT, session)
        engine.submit(loop(1))
        await session.came.wait()
        state = await engine.export_kv(NAME)
        into, third = b"i" * 16, b"t" * 16
        await engine.open(into, CONTEXT, other)
        assert await engine.import_kv(into, state) == 5
        await engine.open(third, CONTEXT, other)
        await engine.fork(NAME, third)
        assert await engine.export_kv(third) == state == await engine.export_kv(into)

    on_engine(body)
