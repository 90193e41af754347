"""The daemon's side with a real worker process: events, crash and restart, absence of torch."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from shoal.tasks.engine import defaults, watchdog
from shoal.tasks.engine.connection.starting import Connect
from shoal.tasks.engine.errors import EngineError, EngineUnavailable
from shoal.tasks.engine.interface import (
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Parts,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.engine.wire import WireClosed
from shoal.transport.host.real import RealChild, RealHost
from shoal.transport.host.seam import Host
from tests.tasks.fake_swarm import FakeHost

TOKENS = (5, 17, 3, 88, 41)


class Inbox:
    """A session's events, and waiting for them."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self._more = trio.Event()

    def __call__(self, event: EngineEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, enough: Callable[[EngineEvent], bool]) -> list[EngineEvent]:
        with trio.fail_after(30):
            while not (self.events and enough(self.events[-1])):
                self._more = trio.Event()
                await self._more.wait()
        return self.events

    def tokens(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, TokenEvent)]


def ended(event: EngineEvent) -> bool:
    return not isinstance(event, TokenEvent) or event.final


def name(text: str) -> bytes:
    return text.encode().ljust(16, b".")


@pytest.mark.trio
async def test_sessions_stream_together_and_do_not_mix(
    nursery: trio.Nursery, checkpoint: Any
) -> None:
    made = checkpoint("Llama")
    engine = EngineProcess(RealHost(), threads=1)
    await nursery.start(engine.run)
    loaded = await engine.load(made.shard())
    assert loaded.kv_token_bytes == 4 * 2 * 2 * 8 * 4
    assert loaded.weight_bytes == 4 * sum(p.numel() for p in made.model.parameters())
    assert loaded.costs.step_s + loaded.costs.row_s > 0  # measured after loading
    prompts = {name(f"s{index}"): TOKENS[index:] for index in range(3)}
    boxes = {session: Inbox() for session in prompts}
    for session, prompt in prompts.items():
        assert await engine.open(session, 64, boxes[session]) == 0
        engine.submit(Span(session, 0, 0, len(prompt), tokens=prompt, want="token", steps=30))
    for session, prompt in prompts.items():
        await boxes[session].until(ended)
        assert boxes[session].tokens() == made.greedy(prompt, 30)
    usage = await engine.usage()
    assert usage["sessions"] == 3
    assert usage["kv_bytes_reserved"] == 3 * 64 * loaded.kv_token_bytes
    for session in prompts:
        await engine.close(session)
    assert (await engine.usage())["kv_bytes_reserved"] == 0
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "most", [pytest.param(defaults.THREAD_BYTES, marks=pytest.mark.ci), 50_000]
)
@pytest.mark.trio
async def test_large_payloads_and_state_cross_the_process_border(
    nursery: trio.Nursery, checkpoint: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Those above THREAD_BYTES are copied in threads, in both directions."""
    monkeypatch.setattr(defaults, "THREAD_BYTES", most)
    works, offload = [], RealHost.offload

    async def counted(host: RealHost, work: Any, *args: Any) -> Any:
        works.append(work.__name__)
        return await offload(host, work, *args)

    monkeypatch.setattr(RealHost, "offload", counted)
    made = checkpoint("Llama", hidden_size=256, max_position_embeddings=512)
    host = RealHost()
    first, second = (EngineProcess(host, threads=1) for _ in range(2))
    for engine, parts in zip((first, second), made.splits(2), strict=True):
        await nursery.start(engine.run)
        await engine.load(made.shard(parts))
    prompt = tuple(range(100)) * 4  # 400 x 256 x 4 bytes of hidden states: not inline
    session, box, other = name("s"), Inbox(), Inbox()
    for engine, inbox in ((first, box), (second, other)):
        await engine.open(session, 512, inbox)
    first.submit(Span(session, 0, 0, 400, tokens=prompt))
    (hidden,) = await box.until(ended)
    assert isinstance(hidden, HiddenEvent) and len(hidden.data) == 400 * 256 * 4
    second.submit(Span(session, 0, 0, 400, hidden=hidden.data, want="token"))
    await other.until(ended)
    assert other.tokens() == made.greedy(prompt, 1)

    state = await second.export_kv(session)
    twin, copy = name("twin"), Inbox()
    await second.open(twin, 512, copy)
    assert await second.import_kv(twin, state) == 400
    assert await second.export_kv(twin) == state
    await second.fork(session, twin)
    assert await second.export_kv(twin) == state
    assert ({"put", "read"} <= set(works)) == (most == 50_000)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_killed_worker_fails_its_sessions_and_is_started_again(
    nursery: trio.Nursery, checkpoint: Any
) -> None:
    made = checkpoint("Llama")
    engine = EngineProcess(RealHost(), threads=1)
    restarted = trio.Event()
    engine.on_restart(lambda: restarted.set())
    await nursery.start(engine.run)
    await engine.load(made.shard())
    box = Inbox()
    await engine.open(name("s"), 96, box)
    engine.submit(Span(name("s"), 3, 0, 5, tokens=TOKENS, want="token", steps=90))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    *_, last = await box.until(ended)
    assert isinstance(last, FailedEvent)
    assert (last.code, last.epoch) == ("worker-crashed", 3)
    with pytest.raises(EngineError) as failure:
        engine.submit(Span(name("s"), 3, 5, 1, tokens=(1,)))
    assert failure.value.code == "unknown-session"
    with trio.fail_after(30):
        await restarted.wait()
    with pytest.raises(EngineError) as failure:
        await engine.open(name("s"), 96, box)
    assert failure.value.code == "no-shard"
    await engine.load(made.shard())
    again = Inbox()
    await engine.open(name("s"), 96, again)
    engine.submit(Span(name("s"), 0, 0, 5, tokens=TOKENS, want="token", steps=9))
    await again.until(ended)
    assert again.tokens() == made.greedy(TOKENS, 9)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_stopped_worker_loses_its_sessions_and_is_replaced(
    nursery: trio.Nursery, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon sees that the process is stopped, and does not wait until it may be hung."""
    monkeypatch.setattr(watchdog, "HUNG_KILL", 1e6)
    made = checkpoint("Llama")
    engine = EngineProcess(RealHost(), threads=1)
    restarted = trio.Event()
    engine.on_restart(lambda: restarted.set())
    await nursery.start(engine.run)
    await engine.load(made.shard())
    box = Inbox()
    await engine.open(name("s"), 96, box)
    engine.submit(Span(name("s"), 3, 0, 5, tokens=TOKENS, want="token", steps=90))
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    began = trio.current_time()
    *_, last = await box.until(ended)
    assert isinstance(last, FailedEvent) and last.code == "worker-crashed"
    assert trio.current_time() - began > 0.9
    with pytest.raises(EngineError, match="does not respond"):
        await engine.open(name("t"), 96, box)
    with trio.fail_after(40):
        await restarted.wait()
    await engine.load(made.shard())
    again = Inbox()
    await engine.open(name("s"), 96, again)
    engine.submit(Span(name("s"), 0, 0, 5, tokens=TOKENS, want="token", steps=9))
    await again.until(ended)
    assert again.tokens() == made.greedy(TOKENS, 9)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_cancel_close_and_reload_end_what_they_should(
    nursery: trio.Nursery, checkpoint: Any
) -> None:
    made = checkpoint("Llama", max_position_embeddings=4096)
    engine = EngineProcess(RealHost(), threads=1)
    await nursery.start(engine.run)
    await engine.load(made.shard())
    box, closed, left = Inbox(), Inbox(), Inbox()
    for session, inbox in ((name("a"), box), (name("b"), closed), (name("c"), left)):
        await engine.open(session, 4096, inbox)
        engine.submit(Span(session, 0, 0, 5, tokens=TOKENS, want="token", steps=4000))
    await box.until(lambda event: isinstance(event, TokenEvent))
    engine.cancel(name("a"))
    *_, last = await box.until(ended)
    assert isinstance(last, FailedEvent) and last.code == "cancelled"

    await engine.close(name("b"))
    seen = len(closed.events)
    assert (await engine.usage())["sessions"] == 2
    assert len(closed.events) == seen

    whole = made.shard(Parts(True, 0, made.layers, False))
    await engine.load(whole)
    assert isinstance(left.events[-1], FailedEvent) and left.events[-1].code == "shard-replaced"
    assert (await engine.usage())["sessions"] == 0
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_refusals_arrive_as_codes(nursery: trio.Nursery, checkpoint: Any) -> None:
    made = checkpoint("Llama")
    engine = EngineProcess(RealHost(), threads=1, memory_bytes=made.shard().kv_bytes + (1 << 20))
    await nursery.start(engine.run)

    async def code(work: Callable[[], Any]) -> str:
        with pytest.raises(EngineError) as failure:
            await work()
        return failure.value.code

    box = Inbox()
    assert await code(lambda: engine.open(name("s"), 8, box)) == "no-shard"
    await engine.load(made.shard())
    assert await code(lambda: engine.open(name("s"), 97, box)) == "too-long"
    await engine.open(name("s"), 8, box)
    assert await code(lambda: engine.open(name("s"), 8, box)) == "session-exists"
    assert await code(lambda: engine.import_kv(name("s"), b"x")) == "bad-state"
    assert await code(lambda: engine.export_kv(name("t"))) == "unknown-session"
    with pytest.raises(EngineError) as failure:
        engine.submit(Span(name("s"), 0, 0, 1))
    assert failure.value.code == "bad-span"
    engine.submit(Span(name("s"), 0, 0, 1, tokens=(101,)))
    (event,) = await box.until(ended)
    assert isinstance(event, FailedEvent) and event.code == "bad-token"
    await engine.close(name("unknown"))
    nursery.cancel_scope.cancel()


class WithoutTorch(RealHost):
    """A host whose children cannot import torch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> RealChild:
        return await super().spawn(module, args, {**env, "PYTHONPATH": str(self._folder)})


@pytest.mark.trio
async def test_without_torch_the_engine_says_so(tmp_path: Path, checkpoint: Any) -> None:
    engine = EngineProcess(WithoutTorch(tmp_path), threads=1)
    async with trio.open_nursery() as nursery:
        with pytest.raises(EngineUnavailable) as failure:
            await nursery.start(engine.run)
    assert failure.value.hint is not None and "torch==2.13.0" in failure.value.hint
    with pytest.raises(EngineUnavailable):
        await engine.load(checkpoint("Llama").shard())


@pytest.mark.trio
async def test_cancelling_run_ends_the_process() -> None:
    engine = EngineProcess(RealHost(), threads=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        pid = engine.pid
        assert pid is not None
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.trio
async def test_a_worker_gives_way_to_the_owners_programs(nursery: trio.Nursery) -> None:
    engine = EngineProcess(RealHost(), threads=1)
    await nursery.start(engine.run)
    assert engine.pid is not None
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + defaults.NICE)
    assert os.getpriority(os.PRIO_PROCESS, engine.pid) == expected
    assert os.getsid(engine.pid) == engine.pid
    group = trio.Path(f"/proc/{engine.pid}/autogroup")
    if await group.exists():  # absent where Linux does not group by session
        assert (await group.read_text()).split()[-1] == str(defaults.NICE)


@pytest.mark.trio
async def test_a_worker_ends_with_its_daemon_and_not_with_ctrl_c() -> None:
    child = await RealHost().spawn("shoal.tasks.engine.worker", [], {})
    with trio.fail_after(30):
        assert b"ready" in await child.socket.recv(1000)
        os.kill(child.pid, signal.SIGINT)
        child.socket.close()
        assert await child.wait() == 0


class FakeChild:
    """A worker that sends `words` and then ends."""

    def __init__(self, words: bytes) -> None:
        self.pid = 1
        self.socket, theirs = trio.socket.socketpair()
        os.write(theirs.fileno(), words)
        theirs.close()

    async def wait(self) -> int:
        return 1

    async def stop(self, grace: float) -> None:
        self.socket.close()


class Crashing(RealHost):
    """A host on which every worker crashes at once, some after nonsense."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []

    async def spawn(self, module: str, args: Sequence[str], env: Mapping[str, str]) -> RealChild:
        self.starts.append(trio.current_time())
        words = (b"", b"nonsense that is no frame at all", b"\0" * 16)[len(self.starts) % 3]
        return FakeChild(words)  # type: ignore[return-value]


@pytest.mark.trio
async def test_a_worker_that_keeps_crashing_is_started_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Crashing()
    engine = EngineProcess(host, threads=1)
    with trio.move_on_after(300):
        await engine.run()
    pauses = [later - earlier for earlier, later in pairwise(host.starts)]
    assert pauses[:4] == pytest.approx([0.25, 0.5, 1.0, 2.0], abs=0.01)
    assert max(pauses) == pytest.approx(30.0, abs=0.01)
    with pytest.raises(EngineError) as failure:
        await engine.open(name("s"), 1, lambda event: None)
    assert failure.value.code == "worker-crashed"


class FakeWorker:
    """A worker and the connection to it. It loads any shard, and ends when `die` is called."""

    pid = 1

    def __init__(self, *, stopped: bool = False) -> None:
        self.mute = False  # whether it answers nothing any more
        self._stopped = stopped
        self._frames: list[tuple[tuple[Any, ...], memoryview]] = [
            (("ready", 1, "x"), memoryview(b""))
        ]
        self._news = trio.Event()
        self._news.set()
        self._dead = False

    def die(self) -> None:
        self._dead = True
        self._news.set()

    def is_stopped(self) -> bool:
        return self._stopped

    def put(self, header: tuple[Any, ...], payload: Any = b"") -> None:
        if self.mute:
            return
        self._frames.append(
            (("ok", header[1], (1, 1, 0.1, (), "", (0.0, 0.0, 0.0))), memoryview(b""))
        )
        self._news.set()

    def flush(self) -> bool:
        return True

    def receive(self) -> list[tuple[tuple[Any, ...], memoryview]]:
        if self._dead:
            raise WireClosed("dead")
        frames, self._frames = self._frames, []
        self._news = trio.Event()
        return frames

    def arrived(self, most: int) -> list[tuple[tuple[Any, ...], memoryview]]:
        return self.receive()

    def close(self) -> None: ...

    async def wait_readable(self) -> None:
        await self._news.wait()

    async def wait_writable(self) -> None: ...

    async def wait(self) -> int:
        await trio.lowlevel.checkpoint()
        return -9

    async def stop(self, grace: float) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_worker_that_has_loaded_is_back_soon_however_often_it_crashes(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, checkpoint: Any
) -> None:
    """A crash before it has loaded makes the pauses grow only until a worker has loaded again."""
    workers: list[FakeWorker] = []
    starts: list[float] = []

    async def connect(*_: object) -> tuple[FakeWorker, FakeWorker]:
        await trio.lowlevel.checkpoint()
        starts.append(trio.current_time())
        workers.append(FakeWorker())
        return workers[-1], workers[-1]

    engine = EngineProcess(cast(Host, FakeHost()), threads=1, connect=cast(Connect, connect))
    await nursery.start(engine.run)
    shard = checkpoint("Llama").shard()
    pauses = []
    for loads in [True] * 8 + [False] * 3 + [True] * 2:
        if loads:
            await engine.load(shard)
        died = trio.current_time()
        count = len(starts)
        workers[-1].die()
        while len(starts) == count:  # noqa: ASYNC110
            await trio.sleep(0.01)
        pauses.append(starts[-1] - died)
    assert pauses == pytest.approx([0.25] * 8 + [0.5, 1, 2] + [0.25] * 2, abs=0.02)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize(("stopped", "seconds"), [(True, 1.0), (False, 10.0)])
async def test_a_mute_worker_is_ended_sooner_if_its_process_is_stopped(
    stopped: bool,
    seconds: float,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    checkpoint: Any,
) -> None:
    """One that may only be slow gets HUNG_KILL, because loading takes longer than waiting."""
    workers: list[FakeWorker] = []
    starts: list[float] = []

    async def connect(*_: object) -> tuple[FakeWorker, FakeWorker]:
        await trio.lowlevel.checkpoint()
        starts.append(trio.current_time())
        workers.append(FakeWorker(stopped=stopped))
        return workers[-1], workers[-1]

    engine = EngineProcess(cast(Host, FakeHost()), threads=1, connect=cast(Connect, connect))
    await nursery.start(engine.run)
    await engine.load(checkpoint("Llama").shard())
    await engine.open(name("s"), 96, lambda event: None)
    workers[0].mute = True
    began = trio.current_time()
    with pytest.raises(EngineError, match="does not respond"):
        await engine.open(name("t"), 96, lambda event: None)
    assert trio.current_time() - began == pytest.approx(1.0, abs=0.3)
    while len(starts) == 1:  # noqa: ASYNC110
        await trio.sleep(0.01)
    assert starts[1] - began == pytest.approx(seconds + 0.25, abs=0.3)
    nursery.cancel_scope.cancel()
