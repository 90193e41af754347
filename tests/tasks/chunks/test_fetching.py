"""Fetching chunks from one provider, which may lie, hang or be slow."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.tasks.chunks import fetching
from shoal.tasks.chunks.naming import CHUNK, sign_part
from shoal.tasks.defaults import PARTS_ASKED
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import KvRange
from shoal.transport.link.calls import Answer, Refusal, Reply

from .pair import ALL, CODEC, GIVER, OTHER, Pair, TakingEngine, data_of, names, origin

pytestmark = pytest.mark.trio


async def test_all_chunks_arrive_one_after_the_other(autojump_clock: object) -> None:
    pair, engine = Pair(), TakingEngine()
    fetch = await pair.fetch(engine)
    assert (fetch.ending, fetch.length) == ("done", ALL)
    assert fetch.bytes == 3 * pair.plan().chunk_bytes
    assert [(part.start, part.first) for part in engine.taken] == [
        (start, layer) for start in (0, CHUNK, 2 * CHUNK) for layer in range(4)
    ]
    assert not engine.doubted
    assert pair.provider.given_bytes > fetch.bytes


async def test_a_fetch_begins_where_the_session_ends(autojump_clock: object) -> None:
    pair, engine = Pair(), TakingEngine(304)
    fetch = await pair.fetch(engine, start=304, layers=(0, 4), doubted=True)
    assert (fetch.ending, fetch.length) == ("done", ALL)
    assert engine.taken[0] == KvRange(304, 512, 0, 1) and engine.doubted


async def test_wide_layers_travel_in_several_parts(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.tasks.engine.kv.parts.KV_PART_BYTES", 100 * 72)
    pair, engine = Pair(1), TakingEngine()
    fetch = await pair.fetch(engine)
    assert fetch.length == CHUNK
    assert {part.stop - part.start for part in engine.taken} <= {96, 64, 256 - 2 * 96}


async def test_a_limited_number_of_parts_is_on_the_way(autojump_clock: object) -> None:
    pair = Pair()
    pair.giving.pause = 0.1
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, pair.provider.giving.total())
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await pair.fetch()
        nursery.cancel_scope.cancel()
    assert most == PARTS_ASKED


def _signed(change: Callable[[bytes], bytes]) -> Callable[[Answer, dict[str, Any]], Answer]:
    """Twist: another content, properly signed."""

    def twist(answer: Answer, header: dict[str, Any]) -> Answer:
        assert isinstance(answer, Reply)
        data = change(bytes(answer.payload))
        return Reply({"signature": sign_part(GIVER, header["tag"], data)}, data)

    return twist


def _of(part: KvRange) -> Callable[[bytes], bytes]:
    return lambda _: CODEC.encode(part, "int8", data_of(part, "int8"), "")


def _unsigned(answer: Answer, header: dict[str, Any]) -> Answer:
    assert isinstance(answer, Reply)
    return replace(answer, payload=bytes(answer.payload)[:-1] + b"?")


def _by_another(answer: Answer, header: dict[str, Any]) -> Answer:
    assert isinstance(answer, Reply)
    return Reply({"signature": sign_part(OTHER, header["tag"], answer.payload)}, answer.payload)


def _of_another_chunk(answer: Answer, header: dict[str, Any]) -> Answer:
    assert isinstance(answer, Reply)
    tag = origin().chain(names(1, seed=9)).tags[0]  # type: ignore[union-attr]
    return Reply({"signature": sign_part(GIVER, tag, answer.payload)}, answer.payload)


def _with(answer: Answer, header: dict[str, Any]) -> Answer:
    assert isinstance(answer, Reply)
    return replace(answer, header=header)


LIES: dict[str, Callable[[Answer, dict[str, Any]], Answer]] = {
    "other bytes of the right length": _unsigned,
    "signed by another node": _by_another,
    "signed for another chunk": _of_another_chunk,
    "no signature": lambda answer, _: _with(answer, {}),
    "a short signature": lambda answer, _: _with(answer, {"signature": b"x"}),
    "another layer": _signed(_of(KvRange(0, CHUNK, 3, 4))),
    "other positions": _signed(_of(KvRange(CHUNK, 2 * CHUNK, 0, 1))),
    "a layer more": _signed(_of(KvRange(0, CHUNK, 0, 2))),
    "the exact form": _signed(
        lambda _: CODEC.encode(
            KvRange(0, CHUNK, 0, 1), "exact", data_of(KvRange(0, CHUNK, 0, 1), "exact"), ""
        )
    ),
    "another adapter": _signed(
        lambda _: CODEC.encode(
            KvRange(0, CHUNK, 0, 1), "int8", data_of(KvRange(0, CHUNK, 0, 1), "int8"), "cd" * 32
        )
    ),
    "wrong values, signed": _signed(lambda data: data[:-1] + b"?"),
    "nothing": _signed(lambda _: b""),
    "too little": _signed(lambda data: data[:-1]),
    "too much": _signed(lambda data: data + bytes(2000)),
    "no header": _signed(lambda data: bytes(len(data))),
}


@pytest.mark.parametrize("what", LIES)
async def test_a_liar_is_found_and_nothing_of_it_is_used(what: str, autojump_clock: object) -> None:
    pair, engine = Pair(), TakingEngine()
    pair.link.twist = LIES[what]
    fetch = await pair.fetch(engine)
    assert (fetch.ending, fetch.length, fetch.bytes) == ("liar", 0, 0)


async def test_without_the_signature_a_changed_part_would_be_taken(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twin of `signed by another node`: another node's bytes are not the provider's word."""
    monkeypatch.setattr(fetching, "is_signed", lambda *_: True)
    pair = Pair()
    pair.link.twist = _by_another
    assert (await pair.fetch()).length == ALL


async def test_what_was_right_before_a_lie_is_used(autojump_clock: object) -> None:
    pair, engine = Pair(), TakingEngine()

    def later(answer: Answer, header: dict[str, Any]) -> Answer:
        return answer if header["part"][0] < CHUNK else _unsigned(answer, header)

    pair.link.twist = later
    fetch = await pair.fetch(engine)
    assert (fetch.ending, fetch.length) == ("liar", CHUNK)


@pytest.mark.parametrize("chunks", [3, 1])
async def test_a_provider_that_hangs_costs_a_small_part_of_the_computing(
    chunks: int, autojump_clock: object
) -> None:
    pair = Pair(chunks)
    pair.link.hangs = True
    began = trio.current_time()
    fetch = await pair.fetch()
    assert (fetch.ending, fetch.length) == ("slow", 0)
    assert trio.current_time() - began < 0.07 * 2.6 * chunks


async def test_a_provider_that_trickles_is_given_up(autojump_clock: object) -> None:
    pair = Pair()
    pair.link.rate = 100.0
    began = trio.current_time()
    fetch = await pair.fetch()
    assert (fetch.ending, fetch.length) == ("slow", 0)
    assert trio.current_time() - began < 0.07 * 7.8


async def test_a_provider_that_becomes_slow_is_left_with_what_is_complete(
    autojump_clock: object,
) -> None:
    pair = Pair()
    pair.link.rate, pair.link.slow_from = 1e6, CHUNK
    fetch = await pair.fetch()
    assert (fetch.ending, fetch.length) == ("slow", CHUNK)


async def test_a_slow_link_that_is_faster_than_computing_is_used(autojump_clock: object) -> None:
    pair = Pair()
    size = 3 * pair.plan().chunk_bytes
    pair.link.rate = size / 5.0  # computing takes 7.7 s
    began = trio.current_time()
    fetch = await pair.fetch()
    assert (fetch.ending, fetch.length) == ("done", ALL)
    assert trio.current_time() - began < 1.1 * 5.0


async def test_a_rate_is_not_that_of_a_stall() -> None:
    """Bytes came at 100 a second, but for a stall after the first half of the time."""
    await trio.lowlevel.checkpoint()
    times = [(0.5, 50), (0.6, 50), (0.7, 50), (0.8, 60), (0.9, 70), (1.0, 80)]
    assert fetching.rate_of(0.0, times) == pytest.approx(100.0)
    fades = [(0.5, 50), (0.6, 60), (0.7, 70), (0.8, 71), (0.9, 72), (1.0, 73)]
    assert fetching.rate_of(0.0, fades) == pytest.approx(46.0)
    assert fetching.rate_of(0.0, [(0.0, 0), (1.0, 30)]) == pytest.approx(30.0)


async def test_chunks_that_are_gone(autojump_clock: object) -> None:
    pair = Pair()
    pair.giving.evicted = True
    fetch = await pair.fetch()
    assert (fetch.ending, fetch.length) == ("gone", 0)


@pytest.mark.parametrize(
    ("code", "ending"),
    [("no-memory", "session"), ("unknown-session", "session"), ("worker-crashed", "session"),
     ("gap", "session"), ("other-class", "other-class"), ("bad-state", "liar")],
)  # fmt: skip
async def test_an_engine_that_refuses_ends_the_fetch(
    code: str, ending: str, autojump_clock: object
) -> None:
    pair, engine = Pair(), TakingEngine()
    engine.error = EngineError(code, "no")
    assert (await pair.fetch(engine)).ending == ending


async def test_a_refusal_is_no_lie(autojump_clock: object) -> None:
    pair = Pair()
    pair.link.twist = lambda answer, header: Refusal("busy", "later")
    assert (await pair.fetch()).ending == "gone"
