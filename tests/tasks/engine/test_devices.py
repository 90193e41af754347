"""The engines of several devices as one: sessions and tunings stay on the device of their shard."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.connection.devices import DeviceEngines, shard_number
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import (
    Engine,
    EngineEvent,
    KvRange,
    NamedBlocks,
    SessionId,
    SessionTerms,
    Span,
)
from shoal.tasks.engine.passes import OpenTuning, PassOrder

ONE, TWO = b"1" * 16, b"2" * 16
RANGE = KvRange(0, 16, 0, 1)


class Recorder:
    """An engine that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.refuses = False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def work(first: object, *_args: object, **_more: object) -> int:
            self.told.append((name, first))
            if self.refuses:
                raise EngineError("no-memory", "it refuses")
            return 7

        return work

    def submit(self, span: Span) -> None:
        self.told.append(("submit", span.session))

    def hold(self) -> None:
        self.told.append(("hold", None))

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        self.told.append(("expect_kv", session))

    def cancel(self, session: SessionId) -> None:
        self.told.append(("cancel", session))

    async def usage(self) -> Mapping[str, int]:
        return {"sessions": 2, "kv_bytes_limit": 10}

    def names(self) -> list[str]:
        found = [name for name, _ in self.told]
        self.told.clear()
        return found


def ignore(_event: EngineEvent) -> None:
    pass


def at(device: int, slot: int = 0) -> SessionTerms:
    return SessionTerms(shard=shard_number(device, slot))


@pytest.fixture
def two() -> tuple[DeviceEngines, Recorder, Recorder]:
    engines = Recorder(), Recorder()
    return DeviceEngines([cast(Engine, each) for each in engines]), *engines


Two = tuple[DeviceEngines, Recorder, Recorder]


@pytest.mark.trio
async def test_a_session_stays_on_the_device_of_its_shard(two: Two) -> None:
    both, first, second = two
    assert await both.open(ONE, 64, ignore, at(0, 3)) == 7
    assert await both.open(TWO, 64, ignore, at(1)) == 7
    assert (first.names(), second.names()) == (["open"], ["open"])
    both.submit(Span(TWO, 1, 0, 1))
    both.cancel(TWO)
    await both.recall(TWO, 1, (), ())
    await both.export_kv(TWO)
    await both.import_kv(TWO, b"")
    await both.write_kv(TWO, b"")
    both.expect_kv(TWO, True)
    await both.bring_kv(TWO, b"", 0, 16)
    await both.read_kv(TWO, RANGE)
    await both.read_kv(NamedBlocks(shard_number(1, 2), "owner", b"n" * 16), RANGE)
    await both.close(TWO)
    await both.close(TWO)
    words = (
        "submit cancel recall export_kv import_kv write_kv expect_kv bring_kv read_kv read_kv close"
    )
    assert (first.names(), second.names()) == ([], words.split())
    both.hold()
    assert (first.names(), second.names()) == (["hold"], ["hold"])
    assert await both.usage() == {"sessions": 4, "kv_bytes_limit": 20}


@pytest.mark.trio
async def test_what_is_not_there_is_refused(two: Two) -> None:
    both, first, second = two
    await both.open(ONE, 64, ignore, at(0))
    await both.open(TWO, 64, ignore, at(1))
    for code, work in (
        ("session-exists", both.open(ONE, 64, ignore, at(1))),
        ("no-shard", both.open(b"3" * 16, 64, ignore, at(2))),
        ("unknown-session", both.export_kv(b"3" * 16)),
        ("bad-state", both.fork(ONE, TWO)),
        ("unknown-session", both.set_tensors(ONE, b"")),
    ):
        with pytest.raises(EngineError) as raised:
            await work
        assert raised.value.code == code
    first.refuses = second.refuses = True
    with pytest.raises(EngineError, match="it refuses"):
        await both.open(b"4" * 16, 64, ignore, at(0))
    with pytest.raises(EngineError) as raised:
        both.submit(Span(b"4" * 16, 1, 0, 1))
    assert raised.value.code == "unknown-session", "a refused session leaves nothing behind"


@pytest.mark.trio
async def test_tunings_stay_on_their_device_too(two: Two) -> None:
    both, first, second = two
    terms = AdapterTerms("ab" * 32, 4, 8.0, False, "F32", ("q_proj",), (0, 2))
    order = OpenTuning(shard_number(1, 0), "owner", True, terms)
    await both.open_tuning(ONE, order)
    await both.set_tensors(ONE, b"")
    await both.tune(ONE, cast(PassOrder, None), b"")
    await both.close_tuning(ONE)
    await both.close_tuning(ONE)
    assert first.names() == []
    assert second.names() == ["open_tuning", "set_tensors", "tune", "close_tuning"]
