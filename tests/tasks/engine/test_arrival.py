"""Parts of KV: read from named blocks and sessions, and written into sessions that go on alike."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from shoal.tasks.engine.interface import FailedEvent, Span
from shoal.tasks.engine.kv import arrival
from shoal.tasks.engine.kv.blocks import BLOCK
from shoal.tasks.inference.names import PrefixNames

IDS = tuple((7 * at + at // 5) % 101 for at in range(70))
NAMES = PrefixNames(b"secret").of("ab" * 32, IDS)
FULL = 64  # positions with names
LAYERS = 4


def opened(
    worker: Any, name: bytes, tokens: int = 90, *, names: bytes = NAMES, exact: bool = True
) -> bytes:
    name = name.ljust(16, b".")
    terms = "gateway", False, b"", 0, None, "", False, False, exact
    assert worker.request("open", name, tokens, *terms, payload=names)[0] == "ok"
    return name


def cached(worker: Any, *, exact: bool = True) -> int:
    """Return how many positions a session of the gateway finds."""
    terms = "gateway", False, b"", 0, None, "", False, False, exact
    reply = worker.request("open", b"look".ljust(16, b"."), 90, *terms, payload=NAMES)
    worker.request("close", b"look".ljust(16, b"."))
    assert reply[0] == "ok"
    return int(reply[1])


@pytest.fixture
def computed(checkpoint: Any, driver: Any) -> Any:
    """A worker that has computed the text in a session, which is open."""
    worker = driver(checkpoint("Llama").shard())
    source = opened(worker, b"source")
    worker.run(Span(source, 0, 0, len(IDS), tokens=IDS, want="token"))
    return worker


def read(
    worker: Any,
    start: int,
    stop: int,
    first: int,
    last: int,
    *,
    session: bytes = b"",
    form: str = "exact",
    owner: str = "gateway",
) -> Any:
    names = b"" if session else NAMES[start // BLOCK * 16 : stop // BLOCK * 16]
    fields = session, 0, owner, "", (start, stop, first, last), form
    return worker.request("read", *fields, payload=names)


def write(worker: Any, session: bytes, part: Any, *, doubted: bool = False) -> Any:
    return worker.request("write", session, doubted, payload=bytes(part))[:2]


def logits(worker: Any, session: bytes, start: int) -> torch.Tensor:
    ids = IDS[start:]
    data = worker.hidden(Span(session, 0, start, len(ids), tokens=ids, want="logits"))
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(len(ids), -1)


@pytest.mark.parametrize("source", [b"", b"source".ljust(16, b".")])
def test_exact_parts_continue_as_if_computed(
    computed: Any, source: bytes, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target, alone = opened(other, b"target"), opened(other, b"alone", names=b"")
    for layer in range(LAYERS):  # layer by layer, each in two pieces
        for start in (0, 32):
            part = read(computed, start, start + 32, layer, layer + 1, session=source)[-1]
            done = FULL if start else 32
            length = done if layer == LAYERS - 1 else 0
            assert write(other, target, part) == ("ok", length)
    assert torch.equal(logits(other, target, FULL), logits(other, alone, 0)[FULL:])
    other.request("close", target, payload=NAMES)
    assert cached(other) == FULL


def test_a_running_session_is_copied_as_its_blocks_fill(
    computed: Any, checkpoint: Any, driver: Any
) -> None:
    """A standby gets parts from any position on, while spans wait."""
    source = b"source".ljust(16, b".")
    standby = driver(checkpoint("Llama").shard())
    target = opened(standby, b"standby", names=b"")
    ends = [0, 9, 33, 70]
    computed.submit(Span(source, 0, 70, 1, tokens=(5,), want="token", steps=9))
    for start, stop in itertools.pairwise(ends):
        part = read(computed, start, stop, 0, LAYERS, session=source)[-1]
        assert write(standby, target, part) == ("ok", stop)
    mine = [event.token for event in computed.events()]
    theirs = standby.tokens(Span(target, 0, 70, 1, tokens=(5,), want="token", steps=9))
    assert mine == theirs


def test_a_copy_in_int8_is_near_and_half_or_a_quarter(
    computed: Any, checkpoint: Any, driver: Any
) -> None:
    exact = read(computed, 0, FULL, 0, LAYERS)[-1]
    small = read(computed, 0, FULL, 0, LAYERS, form="int8")[-1]
    head = computed.shard.compute.arch.head_dim
    assert len(small) / len(exact) == pytest.approx((head + 2) / (4 * head), rel=0.05)
    other = driver(checkpoint("Llama").shard())
    target, alone = opened(other, b"target"), opened(other, b"alone", names=b"")
    assert write(other, target, small) == ("ok", FULL)
    mine, theirs = logits(other, target, FULL), logits(other, alone, 0)[FULL:]
    assert not torch.equal(mine, theirs)
    assert float((mine - theirs).norm() / theirs.norm()) < 0.02


def test_exact_sessions_do_not_find_what_stems_from_int8(
    computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target = opened(other, b"target")
    assert write(other, target, read(computed, 0, 32, 0, LAYERS, form="int8")[-1]) == ("ok", 32)
    other.run(Span(target, 0, 32, 38, tokens=IDS[32:], want="token"))
    other.request("close", target, payload=NAMES)
    assert cached(other) == 0
    assert cached(other, exact=False) == FULL, "also the blocks that were computed after it"
    assert read(other, 0, 16, 0, LAYERS)[:2] == ("refused", "bad-state")
    assert read(other, 0, 16, 0, LAYERS, form="int8")[0] == "ok"


def test_what_is_computed_before_int8_stays_exact(
    computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target = opened(other, b"target")
    other.run(Span(target, 0, 0, 32, tokens=IDS[:32]))
    assert write(other, target, read(computed, 32, 64, 0, LAYERS, form="int8")[-1]) == ("ok", 64)
    other.request("close", target, payload=NAMES)
    assert (cached(other), cached(other, exact=False)) == (32, FULL)


def _changed(part: Any, change: Callable[[list[Any]], None]) -> bytes:
    data = bytes(part)
    size = int.from_bytes(data[:2], "big")
    fields = msgpack.unpackb(data[2 : 2 + size])
    change(fields)
    header: bytes = msgpack.packb(fields)
    return len(header).to_bytes(2, "big") + header + data[2 + size :]


def _set(place: int, value: object) -> Callable[[list[Any]], None]:
    def change(fields: list[Any]) -> None:
        fields[place] = value

    return change


FOREIGN = {
    "another model": _set(2, "cd" * 32),
    "another adapter": _set(3, "cd" * 32),
    "another dtype": _set(4, "bfloat16"),
    "another class": _set(5, "AVX9 plain float32"),
    "another shape": _set(8, 3),
    "layers that the shard lacks": _set(7, [0, 32, 1, 5]),
    "more positions than it has": _set(7, [0, 48, 0, 4]),
    "no positions": _set(7, [32, 32, 0, 4]),
    "too many positions": _set(7, [0, 1 << 30, 0, 4]),
    "positions as text": _set(7, ["0", "32", 0, 4]),
    "a later part": _set(7, [32, 64, 0, 4]),
    "another format": _set(1, 2),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_part_of_something_else_is_refused(
    what: str, computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target = opened(other, b"target")
    part = read(computed, 0, 32, 0, LAYERS)[-1]
    before = other.request("usage")[1]["kv_bytes_reserved"]
    codes = {"another class": "other-class", "a later part": "gap"}
    code = codes.get(what, "bad-state")
    assert write(other, target, _changed(part, FOREIGN[what])) == ("refused", code)
    assert other.core.runner.find(target).table.length == 0
    assert other.request("usage")[1]["kv_bytes_reserved"] == before
    assert write(other, target, part) == ("ok", 32), "the right one is taken"


@pytest.mark.parametrize("form", ["exact", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(
    form: str, value: float, computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target = opened(other, b"target")
    part = bytearray(read(computed, 0, 32, 0, LAYERS, form=form)[-1])
    bad = np.array([value], np.float32 if form == "exact" else np.float16).tobytes()
    part[-len(bad) :] = bad
    assert write(other, target, part) == ("refused", "bad-state")
    assert cached(other, exact=False) == 0


@pytest.mark.parametrize("cut", [0, 1, 2, 100, -1])
def test_malformed_parts_are_refused(cut: int, computed: Any) -> None:
    target = opened(computed, b"target", names=b"")
    part = bytes(read(computed, 0, 32, 0, LAYERS)[-1])
    assert write(computed, target, part[:cut]) == ("refused", "bad-state")
    assert write(computed, target, part + b"x") == ("refused", "bad-state")


def test_parts_that_leave_a_gap_are_refused(computed: Any) -> None:
    target = opened(computed, b"target", names=b"")
    assert write(computed, target, read(computed, 0, 16, 0, 2)[-1]) == ("ok", 0)
    later = read(computed, 16, 32, 0, LAYERS)[-1]
    assert write(computed, target, later) == ("refused", "gap")
    assert write(computed, target, read(computed, 0, 16, 0, 1)[-1]) == ("refused", "gap")
    assert write(computed, target, read(computed, 0, 16, 2, LAYERS)[-1]) == ("ok", 16)
    assert write(computed, target, later) == ("ok", 32)


def test_only_idle_sessions_take_parts(computed: Any) -> None:
    target = opened(computed, b"target", names=b"")
    computed.submit(Span(target, 0, 0, 20, tokens=IDS[:20]))
    part = read(computed, 0, 16, 0, LAYERS)[-1]
    computed.frames.clear()
    assert write(computed, target, part) == ("refused", "busy")


def test_what_is_not_there_is_refused(computed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"source".ljust(16, b".")
    assert read(computed, 0, 16, 0, LAYERS, owner="another")[:2] == ("refused", "bad-state")
    assert read(computed, 0, 71, 0, LAYERS, session=source)[:2] == ("refused", "bad-state")
    assert read(computed, 0, 16, 0, 5)[:2] == ("refused", "bad-state")
    assert read(computed, 0, 16, 2, 2)[:2] == ("refused", "bad-state")
    assert read(computed, 0, 16, 0, 4, session=b"?" * 16)[:2] == ("refused", "unknown-session")
    names = NAMES[: 2 * 16]
    fields = b"", 0, "gateway", "", (8, 40, 0, 4), "exact"
    assert computed.request("read", *fields, payload=names)[:2] == ("refused", "bad-state")
    monkeypatch.setattr("shoal.tasks.engine.kv.parts.KV_PART_BYTES", 1000)
    reply = read(computed, 0, 64, 0, LAYERS)
    assert reply[:2] == ("refused", "bad-state") and "too large" in str(reply[2])


def test_more_than_the_memory_is_refused(checkpoint: Any, driver: Any, computed: Any) -> None:
    shard = checkpoint("Llama").shard()
    width = computed.shard.block_bytes
    other = driver(replace(shard, kv_bytes=4 * width))
    assert other.request("open", b"a" * 16, 32, "g", False, b"", 0, None, "")[0] == "ok"
    name = b"b" * 16
    assert other.request("open", name, 64, "g", False, b"", 0, 16, "")[0] == "ok"
    part = read(computed, 0, 48, 0, LAYERS)[-1]
    assert write(other, name, part) == ("refused", "no-memory")
    pool = other.shard.pool
    assert pool.free + pool.cached + pool.used == pool.total == 4


def doubted(computed: Any, other: Any, change: Callable[[bytearray], None], form: str) -> Any:
    """Return the events of a session that continues after 64 doubted positions."""
    target = opened(other, b"target", exact=form == "exact")
    for layer in range(LAYERS):
        part = bytearray(read(computed, 0, FULL, layer, layer + 1, form=form)[-1])
        change(part)
        reply = write(other, target, part, doubted=True)
    assert reply == ("ok", FULL - BLOCK), "the last block is computed again"
    assert cached(other, exact=False) == 0, "nothing is believed yet"
    start = FULL - BLOCK
    return other.run(Span(target, 0, start, len(IDS) - start, tokens=IDS[start:], want="token"))


@pytest.mark.parametrize("form", ["exact", "int8"])
def test_doubted_content_is_believed_if_its_last_block_is_right(
    form: str, computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    (token,) = doubted(computed, other, lambda part: None, form)
    assert token.token == checkpoint("Llama").greedy(IDS, 1)[0]
    assert cached(other, exact=form == "exact") == FULL


def wrong(part: bytearray) -> None:
    """Turn the values round: bytes of the right number, all finite."""
    half = (len(part) - 200) // 8 * 4
    part[-half:] = np.frombuffer(bytes(part[-half:]), np.float32)[::-1].tobytes()


def huge(part: bytearray) -> None:
    """Make all values finite, but their norm infinite, so that no distance from them is a
    number."""
    half = (len(part) - 200) // 8 * 4
    part[-half:] = np.full(half // 4, 3e38, np.float32).tobytes()


@pytest.mark.parametrize("change", [wrong, huge])
def test_doubted_content_that_is_wrong_is_not_used(
    change: Callable[[bytearray], None],
    computed: Any,
    checkpoint: Any,
    driver: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = driver(checkpoint("Llama").shard())
    (failed,) = doubted(computed, other, change, "exact")
    assert isinstance(failed, FailedEvent) and failed.code == "bad-chunk"
    other.request("close", b"target".ljust(16, b"."), payload=NAMES)
    assert cached(other) == 0
    pool = other.shard.pool
    assert pool.free + pool.cached + pool.used == pool.total

    # Twin: without the comparison it would be believed.
    monkeypatch.setattr(arrival, "KV_WRONG", 1e9)
    believing = driver(checkpoint("Llama").shard())
    (token,) = doubted(computed, believing, wrong, "exact")
    assert not isinstance(token, FailedEvent) and cached(believing) == FULL


def test_doubted_content_of_a_session_that_ends_early_is_forgotten(
    computed: Any, checkpoint: Any, driver: Any
) -> None:
    other = driver(checkpoint("Llama").shard())
    target = opened(other, b"target")
    part = read(computed, 0, FULL, 0, LAYERS)[-1]
    assert write(other, target, part, doubted=True) == ("ok", FULL - BLOCK)
    other.request("close", target, payload=NAMES)
    assert cached(other) == 0
    target = opened(other, b"again")
    assert write(other, target, part, doubted=True) == ("ok", FULL - BLOCK)
    other.run(Span(target, 0, FULL - BLOCK, 4, tokens=IDS[FULL - BLOCK :][:4]))
    other.run(Span(target, 1, 20, 4, tokens=IDS[20:24]))
    other.request("close", target, payload=NAMES)
    assert cached(other) == 0
