"""Models with recurrent layers in a worker: what their sessions can do, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.tasks.engine.families import architecture, kv_room, kv_token_bytes, state_bytes
from shoal.tasks.engine.interface import FailedEvent, Parts, Span
from tests.tasks.engine.low_rank import adapt, make_adapter
from tests.tasks.engine.test_batch import Talk, alone, opened, worker_of
from tests.tasks.engine.test_llama import CASES, TOKENS


@pytest.fixture
def made(checkpoint: Any) -> Any:
    family, config = CASES["qwen3_next"]
    return checkpoint(family, **config)


def ask(name: bytes, start: int, count: int, *, epoch: int = 0) -> Span:
    tokens = tuple(TOKENS[start : start + count])
    return Span(name, epoch, start, count, tokens=tokens, want="logits")


def test_a_session_goes_back_to_where_its_last_part_began(made: Any, driver: Any) -> None:
    worker = driver(made.shard())
    name = worker.open(b"s", 96)
    first = worker.hidden(ask(name, 0, 10))
    part = bytes(worker.hidden(ask(name, 10, 7)))
    assert bytes(worker.hidden(ask(name, 10, 7, epoch=1))) == part
    assert bytes(worker.hidden(ask(name, 0, 10, epoch=2))) == bytes(first)


def test_a_session_whose_state_is_not_stored_ends_as_preempted(made: Any, driver: Any) -> None:
    """So its gateway opens it again and sends all of its tokens."""
    worker = driver(made.shard())
    name = worker.open(b"s", 96)
    whole = bytes(worker.hidden(ask(name, 0, 20)))
    (event,) = worker.run(ask(name, 7, 5, epoch=1))
    assert isinstance(event, FailedEvent) and (event.code, event.epoch) == ("preempted", 1)
    assert worker.shard.pool.used == worker.shard.pool.promised == 0
    (event,) = worker.run(ask(name, 0, 20, epoch=2))
    assert isinstance(event, FailedEvent) and event.code == "unknown-session"
    assert bytes(worker.hidden(ask(worker.open(b"s", 96), 0, 20))) == whole
    (event,) = worker.run(ask(name, 30, 2, epoch=1))
    assert isinstance(event, FailedEvent) and event.code == "gap"


def test_prefixes_are_not_reused(made: Any, driver: Any) -> None:
    worker = worker_of(made.shard(), driver)
    talk = Talk(3, 50)
    expected = alone(made.shard(), driver, talk)
    for name in (b"a" * 16, b"b" * 16):
        assert opened(worker, name, 96, talk.tokens[:50]) == 0
        assert talk.run(worker, name) == expected
        assert worker.request("close", name, payload=bytes(48))[0] == "ok"
        assert worker.shard.pool.cached == 0


def test_copies_are_refused(made: Any, driver: Any) -> None:
    worker = driver(made.shard())
    one, two = worker.open(b"one"), worker.open(b"two")
    worker.hidden(ask(one, 0, 5))
    assert worker.request("export", one)[:2] == ("refused", "bad-state")
    assert worker.request("import", two, payload=b"")[:2] == ("refused", "bad-state")
    assert worker.request("fork", one, two)[:2] == ("refused", "bad-state")


def test_adapters_are_refused(made: Any, checkpoint: Any, driver: Any, tmp_path: Any) -> None:
    adapter = make_adapter(checkpoint("Llama").config)
    reply = adapt(driver(made.shard()), adapter.load(tmp_path, 0, 4))
    assert reply[:2] == ("refused", "bad-adapter")


def test_sessions_are_as_many_as_there_are_states(made: Any, driver: Any) -> None:
    arch = architecture(made.config)
    state = state_bytes(arch, 0, 1, "float32")
    shard = replace(made.shard(Parts(True, 0, 1, False)), kv_bytes=5 * state)
    worker = driver(shard)
    assert worker.shard.bytes <= worker.shard.weight_bytes + shard.kv_bytes
    used: list[bytes] = []
    while True:
        name = b"%16d" % len(used)
        reply = worker.request("open", name, 16, "g", False, b"", 0, None, "")
        if reply[0] != "ok":
            break
        used.append(name)
    assert reply[:2] == ("refused", "no-memory") and len(used) == 2
    before = worker.shard.pool.promised
    assert worker.request("close", used[0])[0] == "ok"
    assert worker.request("open", name, 16, "g", False, b"", 0, None, "")[0] == "ok"
    assert worker.shard.pool.promised == before


def test_a_state_that_is_not_finite_leaves_no_trace(made: Any, driver: Any) -> None:
    worker = driver(made.shard())
    expected = bytes(driver_logits(driver, made))
    bad = worker.open(b"bad")
    with torch.inference_mode():
        table = worker.shard.compute.embedding
        worker.shard.compute.embedding = table.clone()
        worker.shard.compute.embedding[100] = float("nan")
    (event,) = worker.run(Span(bad, 0, 0, 3, tokens=(100, 1, 2), want="logits"))
    assert isinstance(event, FailedEvent) and event.code == "not-finite"
    assert worker.request("close", bad)[0] == "ok"
    for number in range(4):
        name = worker.open(b"%d" % number)
        assert bytes(worker.hidden(ask(name, 0, 12))) == expected


def driver_logits(driver: Any, made: Any) -> Any:
    worker = driver(made.shard())
    return worker.hidden(ask(worker.open(b"alone"), 0, 12))


def test_memory_is_divided_between_positions_and_states(made: Any) -> None:
    arch = architecture(made.config)
    whole, one = Parts(True, 0, 4, True), Parts(False, 0, 1, False)
    state, token = state_bytes(arch, 0, 4, "float32"), kv_token_bytes(arch, 0, 4, "float32")
    # conv: 3 x (2 x 2 x 8 + 4 x 6) values; state: 4 heads of 8 x 6; two of four layers
    assert state == 2 * 4 * (3 * 56 + 4 * 8 * 6) and token == 2 * 2 * 2 * 16 * 4
    room = kv_room(arch, whole, "float32", 20 * state)
    assert room.states == 10 and room.positions == 10 * state // token
    assert kv_room(arch, whole, "float32", 10**9).states == 128
    alone = kv_room(arch, one, "float32", 10 * state)
    assert alone.states == 20 and alone.positions == 10 * arch.context
    attention = kv_room(arch, Parts(False, 1, 2, False), "float32", 1000 * token)
    assert attention == (2000, 0)
