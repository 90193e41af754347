"""Sessions that share steps, blocks and prefixes: every result is bit for bit that of one alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from shoal.tasks.engine.compute.attention import Attention
from shoal.tasks.engine.interface import (
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Parts,
    Sampling,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.kv.blocks import BLOCK, BlockPool, BlockTable
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.shard import Piece
from shoal.tasks.inference.names import PrefixNames
from tests.marks import in_ci
from tests.tasks.engine.test_llama import CASES, STEPS

NAMES = PrefixNames(b"secret")
FREE = StepCosts(0.0, 0.0, 0.0)
COSTS = [
    FREE,
    StepCosts(0.0, 0.5 / 16, 0.0),  # parts of one block
    StepCosts(0.0, 0.5 / 40, 0.0),  # parts of two
    StepCosts(0.005, 0.001, 1e-5),
    StepCosts(0.0, 0.004, 0.0),  # a few rows in each step with a running text
]


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple(Random(seed).randrange(101) for _ in range(count))


def named(tokens: Sequence[int]) -> bytes:
    return NAMES.of("ab" * 32, tokens)


@dataclass(frozen=True)
class Talk:
    """What one session is asked for: a prompt, then some given tokens, then a loop."""

    seed: int
    prompt: int
    given: int = 4
    steps: int = 6
    cuts: tuple[int, ...] = ()  # ends of the prompt's spans

    @property
    def tokens(self) -> tuple[int, ...]:
        return ids(self.seed, self.prompt + self.given + 1)

    def spans(self, session: bytes, start: int = 0) -> list[Span]:
        # A single position counts as the continuation of a text, so no part of a prompt is one.
        ends = [*(end for end in self.cuts if start < end < self.prompt - 1), self.prompt]
        ends += range(self.prompt + 1, self.prompt + self.given + 1)
        spans, tokens = [], self.tokens
        for end in ends:
            part = tokens[start:end]
            spans.append(Span(session, 0, start, len(part), tokens=part, want="logits"))
            start = end
        sampling = Sampling(1.0, seed=self.seed) if self.seed % 2 else Sampling()
        last = Span(session, 0, start, 1, tokens=tokens[-1:], want="token", steps=self.steps)
        return [*spans, replace(last, sampling=sampling)]

    def run(self, worker: Any, session: bytes, start: int = 0) -> "Result":
        for span in self.spans(session, start):
            worker.submit(span)
        return result(worker.events(), session)


Result = tuple[bytes, list[Any]]  # (all logits, all tokens with their log-probabilities)


def result(events: Sequence[EngineEvent], session: bytes) -> Result:
    mine = [event for event in events if event.session == session]
    assert not [event for event in mine if isinstance(event, FailedEvent)], mine
    logits = b"".join(bytes(event.data) for event in mine if isinstance(event, HiddenEvent))
    tokens = [
        (event.position, event.token, event.logprob, event.final)
        for event in mine
        if isinstance(event, TokenEvent)
    ]
    return logits, tokens


def worker_of(shard: Any, driver: Any, costs: StepCosts = FREE, blocks: int = 0) -> Any:
    """Return a worker with the given costs of a step and number of blocks."""
    if blocks:
        probe = driver(shard).shard
        shard = replace(shard, kv_bytes=blocks * probe.block_bytes)
    worker = driver(shard)
    worker.shard.costs = costs
    step = worker.step

    def counted() -> None:
        step()
        blocks_are_counted(worker)

    worker.step = counted
    return worker


def alone(shard: Any, driver: Any, talk: Talk) -> Result:
    worker = worker_of(shard, driver)
    return replace(talk, cuts=()).run(worker, worker.open(b"alone", 96))


def opened(worker: Any, name: bytes, tokens: int, prompt: Sequence[int], owner: str = "g") -> int:
    """Open a session with the names of a prompt, and return the length of the cached prefix."""
    reply = worker.request(
        "open", name, tokens, owner, False, b"", 0, None, "", payload=named(prompt)
    )
    assert reply[0] == "ok", reply
    cached: int = reply[1]
    return cached


def blocks_are_counted(worker: Any) -> None:
    """Compare what the pool says with what the sessions' tables have."""
    pool, sessions = worker.shard.pool, worker.core.sessions.values()
    tables = [each.table for each in sessions if each.shard is worker.shard]
    for table in tables:
        runs = [range(first, first + count) for first, count in table.runs]
        assert [block for run in runs for block in run] == list(table.blocks)
    users = Counter(block for table in tables for block in table.blocks)
    assert users == {block: count for block, count in enumerate(pool._users) if count}
    free = [first + at for first, count in pool._free._length.items() for at in range(count)]
    assert sorted([*free, *pool._cached, *users]) == list(range(pool.total))
    assert (pool.free, pool.cached, pool.used) == (len(free), len(pool._cached), len(users))
    assert pool.promised == sum(table.promised for table in tables) <= pool.total


# Bit for bit.


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, "float32") for case in STEPS]
    + [(case, "bfloat16") for case in STEPS[:4]]
    + in_ci(*((case, "float32") for case in CASES if case not in STEPS))
    + in_ci(*((case, "bfloat16") for case in CASES if case not in STEPS[:4])),
)
def test_a_row_is_the_same_in_any_batch_and_however_its_prompt_is_cut(
    case: str, dtype: str, checkpoint: Any, driver: Any
) -> None:
    family, config = CASES[case]
    shard = checkpoint(family, **config).shard(dtype=dtype)
    random = Random(f"{case} {dtype}")
    talks = [
        Talk(seed, random.randint(2, 60), cuts=tuple(sorted({random.randint(4, 26), 30, 34})))
        for seed in range(16)
    ]
    expected = [alone(shard, driver, talk) for talk in talks[:5]]
    for costs, count in zip(COSTS, (16, 16, 3, 9, 2), strict=True):
        worker = worker_of(shard, driver, costs)
        names = [worker.open(b"s%d" % talk.seed, 96) for talk in talks[:count]]
        queues = [talk.spans(name) for talk, name in zip(talks, names, strict=False)]
        while any(queues):  # some steps run before the last span arrives
            queue = random.choice([queue for queue in queues if queue])
            worker.submit(queue.pop(0))
            if worker.core.busy and random.random() < 0.4:
                worker.step()
        events = worker.events()
        for name, wanted in zip(names, expected, strict=False):
            assert result(events, name) == wanted, (costs, name)


@pytest.mark.parametrize("case", ["llama", "qwen3", "mistral window", "qwen2 window"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_the_same_after_a_fork_and_with_a_cached_prefix(
    case: str, dtype: str, checkpoint: Any, driver: Any
) -> None:
    family, config = CASES[case]
    made = checkpoint(family, **config)
    shard = made.shard(dtype=dtype)
    talk = Talk(3, 50)
    logits, tokens = alone(shard, driver, talk)
    row = 4 * made.config["vocab_size"]
    for costs in COSTS:
        worker = worker_of(shard, driver, costs)
        first = b"first".ljust(16, b".")
        assert opened(worker, first, 96, talk.tokens[:50]) == 0
        assert talk.run(worker, first) == (logits, tokens)
        twin, third = worker.open(b"twin", 96), b"third".ljust(16, b".")
        assert worker.request("fork", first, twin)[0] == "ok"
        assert worker.request("close", first)[0] == "ok"
        other = worker.open(b"other", 96)
        worker.submit(Talk(8, 40).spans(other)[0])
        ended = Span(twin, 1, 50, 4, tokens=talk.tokens[50:54], want="logits")
        worker.submit(ended)  # as a prompt, beside another one: rounding may differ from decode
        worker.events()
        assert opened(worker, third, 96, talk.tokens[:50]) == 48
        worker.submit(Talk(9, 30).spans(worker.open(b"fourth", 96))[0])
        assert talk.run(worker, third, 48) == (logits[48 * row :], tokens)
        fresh = worker.open(b"fresh", 96)
        assert worker.request("fork", third, fresh)[0] == "ok"
        assert talk.run(worker, fresh) == (logits, tokens)
        blocks_are_counted(worker)


@pytest.mark.parametrize("start", [16, 20, 33, 48])
def test_a_prefix_may_be_used_in_part(start: int, checkpoint: Any, driver: Any) -> None:
    """Other stages may have cached less, so the session begins below its cached prefix."""
    made = checkpoint("Mistral", sliding_window=7)
    talk, row = Talk(5, 52), 4 * made.config["vocab_size"]
    logits, tokens = alone(made.shard(), driver, talk)
    worker = worker_of(made.shard(), driver)
    for name in (b"a" * 16, b"b" * 16, b"c" * 16):
        cached = opened(worker, name, 96, talk.tokens[:52])
        assert cached == (0 if name == b"a" * 16 else 48)
        begin = min(cached, start)
        assert talk.run(worker, name, begin) == (logits[begin * row :], tokens)
    blocks_are_counted(worker)
    before = worker.request("export", b"a" * 16)[-1]
    assert talk.run(worker, b"c" * 16, 0) == (logits, tokens)
    assert worker.request("export", b"a" * 16)[-1] == before


# Prefixes.


def test_a_cached_prefix_gives_the_same_text_and_only_the_rest_is_computed(
    checkpoint: Any, driver: Any, monkeypatch: Any
) -> None:
    made = checkpoint("Llama")
    worker = worker_of(made.shard(), driver)
    rows: list[int] = []
    forward = worker.shard.compute.forward

    def counted(pieces: Any, stop: Any) -> Any:
        rows.append(sum(piece.count for piece in pieces))
        return forward(pieces, stop)

    monkeypatch.setattr(worker.shard.compute, "forward", counted)
    prompt, text = ids(1, 40), made.greedy(ids(1, 40), 30)

    def ask(name: bytes, tokens: Sequence[int], owner: str, start: int, steps: int) -> list[int]:
        rows.clear()
        part = tuple(tokens[start:])
        span = Span(name, 0, start, len(part), tokens=part, want="token", steps=steps)
        found: list[int] = worker.tokens(span)
        assert sum(rows) == len(part) + steps - 1
        return found

    assert opened(worker, b"a" * 16, 96, prompt) == 0
    assert ask(b"a" * 16, prompt, "g", 0, 30) == text
    whole = [*prompt, *text]
    reply = worker.request("close", b"a" * 16, payload=named(whole))
    assert reply[0] == "ok"
    assert worker.shard.pool.cached == (len(whole) - 1) // BLOCK  # the last token was not fed
    assert opened(worker, b"b" * 16, 96, prompt) == 32
    assert ask(b"b" * 16, prompt, "g", 32, 30) == text
    following = [*whole, *ids(2, 4)]  # the next turn of the conversation
    assert opened(worker, b"c" * 16, 96, following) == 64
    assert ask(b"c" * 16, following, "g", 64, 10) == made.greedy(following, 10)
    assert opened(worker, b"d" * 16, 96, prompt, owner="h") == 0
    assert ask(b"d" * 16, prompt, "h", 0, 30) == text


def test_prefixes_are_evicted_under_pressure_and_computed_again(
    checkpoint: Any, driver: Any
) -> None:
    made = checkpoint("Llama")
    worker = worker_of(made.shard(), driver, blocks=12)
    random, found = Random(1), 0
    talks = [Talk(seed, random.randint(20, 60), given=2, steps=3) for seed in range(6)]
    expected = [alone(made.shard(), driver, talk) for talk in talks]
    row = 4 * made.config["vocab_size"]
    for number in range(80):
        pair = random.sample(range(6), 2)
        begins, names = [], []
        for index in pair:
            talk, name = talks[index], b"%d %d".ljust(16) % (number, index)
            name = name[:16].ljust(16)
            cached = opened(worker, name, 96, talk.tokens[: talk.prompt])
            begins.append(min(cached, (talk.prompt - 2) // BLOCK * BLOCK))
            names.append(name)
            for span in talk.spans(name, begins[-1]):
                worker.submit(span)
            found += cached > 0
        events = worker.events()
        for index, name, begin in zip(pair, names, begins, strict=True):
            logits, tokens = expected[index]
            assert result(events, name) == (logits[begin * row :], tokens)
            worker.request("close", name)
            blocks_are_counted(worker)
    assert found > 10 and worker.shard.pool.free < 12


# Values that are not finite.

POISON = 100


def poisoned(shard: Any, driver: Any, costs: StepCosts, blocks: int = 0) -> Any:
    """Return a worker in which one token's embedding is not finite."""
    worker = worker_of(shard, driver, costs, blocks)
    with torch.inference_mode():
        worker.shard.compute.embedding = worker.core.shards[0].compute.embedding.clone()
        worker.shard.compute.embedding[POISON] = float("nan")
    return worker


def clean(seed: int, count: int) -> tuple[int, ...]:
    return tuple(token % POISON for token in ids(seed, count))


@pytest.mark.parametrize("want", ["token", "logits", "hidden"])
@pytest.mark.parametrize("costs", COSTS)
def test_rows_that_are_not_finite_fail_only_their_session(
    want: Any, costs: StepCosts, checkpoint: Any, driver: Any
) -> None:
    shard = checkpoint("Llama").shard()

    def ask(bad: bool) -> tuple[Any, list[EngineEvent]]:
        worker = poisoned(shard, driver, costs)
        for number in range(4):
            name = worker.open(b"s%d" % number, 96)
            tokens = clean(number, 40 + number)
            if number == 1:
                tokens = (*tokens[:20], POISON, *tokens[21:])
            if number != 1 or bad:
                worker.submit(Span(name, 0, 0, len(tokens), tokens=tokens, want=want))
        return worker, worker.events()

    worker, events = ask(True)
    failed = [event for event in events if isinstance(event, FailedEvent)]
    assert [(event.session[:2], event.code) for event in failed] == [(b"s1", "not-finite")]
    _, others = ask(False)

    def by_session(found: list[EngineEvent]) -> dict[bytes, Any]:
        return {
            event.session: bytes(event.data)
            if isinstance(event, HiddenEvent)
            else (event.token, event.logprob)
            for event in found
            if isinstance(event, HiddenEvent | TokenEvent)
        }

    assert by_session(events) == by_session(others) and len(others) == 3
    again = Span(b"s1".ljust(16, b"."), 1, 0, 30, tokens=clean(1, 30), want=want)
    assert not isinstance(worker.run(again)[0], FailedEvent)


def test_a_loop_that_becomes_not_finite_ends_alone(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama")
    worker = poisoned(made.shard(), driver, FREE)
    names = [worker.open(b"s%d" % number, 96) for number in range(3)]
    for number, name in enumerate(names):
        prompt = clean(number, 10)
        worker.submit(Span(name, 0, 0, 10, tokens=prompt, want="token", steps=20))
    for _ in range(3):
        worker.step()
    session = worker.core.runner.find(names[1])
    session.current.source = worker.shard.compute.fed_back(POISON)
    events = worker.events()
    failed = [event for event in events if isinstance(event, FailedEvent)]
    assert [(event.session, event.code) for event in failed] == [(names[1], "not-finite")]
    for number in (0, 2):
        text = [event.token for event in events if event.session == names[number]]
        assert text == made.greedy(clean(number, 10), 20)


@pytest.mark.parametrize("end", ["failure", "close", "cancel", "epoch", "gone text"])
@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_values_that_are_not_finite_leave_no_trace_in_freed_memory(
    end: str, family: str, checkpoint: Any, driver: Any
) -> None:
    made = checkpoint(family, **({"sliding_window": 7} if family == "Mistral" else {}))
    worker = poisoned(made.shard(), driver, StepCosts(0.0, 0.5 / 16, 0.0), blocks=6)
    bad = worker.open(b"bad", 96)
    worker.submit(Span(bad, 0, 0, 90, tokens=(POISON,) * 90, want="token"))
    if end == "failure":
        assert isinstance(worker.events()[-1], FailedEvent)
    else:
        for _ in range(5):
            worker.step()
    if end == "cancel":
        worker.core.handle(("cancel", bad), memoryview(b""))
    if end in ("epoch", "cancel", "gone text"):
        worker.submit(Span(bad, 1, 0, 2, tokens=(1, 2), want="hidden"))
        worker.events()
    if end == "gone text":
        tokens = clean(1, 70)
        text = Span(bad, 2, 0, 70, tokens=tokens, want="token", steps=5)
        assert worker.tokens(text) == made.greedy(tokens, 5)
    worker.request("close", bad)
    for number, size in enumerate((5, 3, 19, 33, 47)):
        tokens, name = clean(number + 2, size), worker.open(b"good%d" % number, 48)
        span = Span(name, 0, 0, size, tokens=tokens, want="token", steps=2)
        assert worker.tokens(span) == made.greedy(tokens, 2)
        if number % 2:
            worker.request("close", name)
            worker.request("close", b"good%d" % (number - 1) + b"." * 11)


@pytest.mark.parametrize("ended", [False, True])
def test_a_prefix_that_is_not_finite_is_not_found(
    ended: bool, checkpoint: Any, driver: Any
) -> None:
    worker = poisoned(checkpoint("Llama").shard(), driver, StepCosts(0.0, 0.5 / 16, 0.0))
    prompt = (*clean(1, 20), POISON, *clean(2, 50))
    assert opened(worker, b"a" * 16, 96, prompt) == 0
    worker.submit(Span(b"a" * 16, 0, 0, len(prompt), tokens=prompt, want="token"))
    (event,) = worker.events()
    assert isinstance(event, FailedEvent)
    if ended:
        worker.request("close", b"a" * 16, payload=named(prompt))
    assert opened(worker, b"b" * 16, 96, prompt) == 0
    (event,) = worker.run(Span(b"b" * 16, 0, 0, len(prompt), tokens=prompt, want="token"))
    assert isinstance(event, FailedEvent) and event.code == "not-finite"


# Many sessions in little memory, and memory in pieces.


@pytest.mark.ci
def test_a_thousand_sessions_pass_through_memory_for_ten(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Llama")
    worker = worker_of(made.shard(), driver, blocks=20)
    texts = {size: made.greedy(ids(size, size), 24 - size) for size in range(3, 21)}
    random = Random(2)
    wanted, open_now, ended, most = 1000, dict[bytes, int](), 0, 0
    made_tokens: dict[bytes, list[int]] = {}
    while ended < 1000:
        while wanted:
            name, size = b"%016d" % wanted, random.randint(3, 20)
            reply = worker.request("open", name, 30, f"g{wanted % 3}", False, b"", 0, None, "")
            if reply[0] != "ok":
                assert reply[1] == "no-memory" and len(open_now) == 10
                break
            wanted -= 1
            open_now[name] = size
            steps = 24 - size
            worker.submit(Span(name, 0, 0, size, tokens=ids(size, size), want="token", steps=steps))
        most = max(most, len(open_now))
        worker.step()
        frames, worker.frames = worker.frames, []
        for header, _ in frames:
            assert header[0] == "token", header
            made_tokens.setdefault(header[1], []).append(header[4])
            if header[6]:
                assert made_tokens.pop(header[1]) == texts[open_now.pop(header[1])]
                worker.request("close", header[1])
                ended += 1
    assert most == 10
    usage = worker.request("usage")[1]
    assert usage["sessions"] == usage["kv_bytes_reserved"] == 0


@pytest.mark.parametrize("blocks", [[0, 5, 2], [3, 1, 2], [4, 5, 6], [7, 6, 5, 4, 0]])
def test_rows_are_written_to_their_own_slots_only(blocks: list[int]) -> None:
    table = BlockTable(BlockPool(8), len(blocks) * BLOCK)
    for block in blocks:
        table._append(block)
    count = len(blocks) * BLOCK
    for first, end in ((0, count), (3, count - 2), (0, 5), (17, 40), (16, 32)):
        memory = torch.zeros(2, 8 * BLOCK, 4)
        rows = torch.randn(end - first + 3, 2, 4)  # with rows of padding
        piece = Piece(table, None, 0, end - first, first, decode=False)
        Attention([piece], 2).write(memory, rows)
        for at in range(first, end):
            assert torch.equal(memory[:, table.slot(at)], rows[at - first])
        others = {*range(8 * BLOCK)} - {table.slot(at) for at in range(first, end)}
        assert not memory[:, sorted(others)].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sessions_in_pieces_of_memory_are_exported_imported_and_continued(
    dtype: str, checkpoint: Any, driver: Any
) -> None:
    made = checkpoint("Qwen3", head_dim=16)
    shard = made.shard(dtype=dtype)
    talk, random = Talk(4, 60), Random(5)
    logits, tokens = alone(shard, driver, talk)
    row = 4 * made.config["vocab_size"]
    fresh = worker_of(shard, driver)
    whole = fresh.open(b"whole", 96)
    for span in talk.spans(whole)[:1]:
        fresh.run(span)
    state = bytes(fresh.request("export", whole)[-1])
    pieces = 0
    for number in range(12):
        worker = worker_of(shard, driver, random.choice(COSTS), blocks=24)
        fillers = [worker.open(b"%d" % index, 16) for index in range(18)]
        for name in random.sample(fillers, 18):
            worker.run(Span(name, 0, 0, 9, tokens=ids(1, 9)))
        for name in random.sample(fillers, 14):
            worker.request("close", name)
        session, other = worker.open(b"session", 80), worker.open(b"other", 64)
        if number % 2:
            assert worker.request("import", other, payload=state)[:2] == ("ok", 60)
        else:
            worker.run(replace(talk.spans(other)[0], want="hidden"))
        assert bytes(worker.request("export", other)[-1]) == state
        worker.request("close", other)
        assert worker.request("import", session, payload=state)[:2] == ("ok", 60)
        assert bytes(worker.request("export", session)[-1]) == state
        pieces += len(worker.core.runner.find(session).table.runs) > 1
        for span in talk.spans(session)[1:]:
            worker.submit(span)
        assert result(worker.events(), session) == (logits[60 * row :], tokens)
    assert pieces > 3


@pytest.mark.parametrize("seed", [0, 1, *in_ci(2, 3)])
def test_sessions_in_fragmented_memory_do_not_touch_each_other(
    seed: int, checkpoint: Any, driver: Any
) -> None:
    made = checkpoint("Llama")
    worker = worker_of(made.shard(), driver, COSTS[seed + 1], blocks=30)
    random, row = Random(seed), 4 * made.config["vocab_size"]
    talks = [Talk(number, random.randint(2, 70), steps=8) for number in range(8)]
    expected = [alone(made.shard(), driver, talk) for talk in talks]
    running: dict[bytes, tuple[int, int]] = {}
    got: dict[bytes, list[EngineEvent]] = {}
    begun = ended = 0
    while ended < 40:
        if begun < 40 and random.random() < 0.3:
            name, index = b"%016d" % begun, random.randrange(8)
            talk = talks[index]
            prompt = talk.tokens[: talk.prompt] if random.random() < 0.5 else ()
            size = talk.prompt + talk.given + talk.steps
            reply = worker.request(
                "open", name, size, "g", False, b"", 0, None, "", payload=named(prompt)
            )
            if reply[0] == "ok":
                begun += 1
                begin = min(reply[1], max(0, talk.prompt - 2) // BLOCK * BLOCK)
                running[name], got[name] = (index, begin), []
                for span in talk.spans(name, begin):
                    worker.submit(span)
        if worker.core.busy:
            worker.step()
        frames, worker.frames = worker.frames, []
        for event in map(_event, frames):
            got[event.session].append(event)
        for name, (index, begin) in [*running.items()]:
            last = got[name][-1] if got[name] else None
            if isinstance(last, TokenEvent) and last.final:
                logits, tokens = expected[index]
                assert result(got[name], name) == (logits[begin * row :], tokens), name
                del running[name]
                worker.request("close", name)
                ended += 1
                blocks_are_counted(worker)


def _event(frame: Any) -> EngineEvent:
    from shoal.tasks.engine.messages import parse_event

    return parse_event(*frame)


# Hidden states between shards.


def test_a_later_shard_is_the_same_in_any_batch(checkpoint: Any, driver: Any) -> None:
    made = checkpoint("Qwen2")
    shard = made.shard(Parts(False, 2, 4, True))

    def hidden(seed: int, count: int) -> bytes:
        rows = np.random.default_rng(seed).normal(size=(count, 32)).astype(np.float32)
        return rows.tobytes()

    def spans(name: bytes, seed: int) -> list[Span]:
        first = Span(name, 0, 0, 20 + seed, hidden=hidden(seed, 20 + seed), want="logits")
        more = [
            Span(name, 0, 20 + seed + at, 1, hidden=hidden(99 + at, 1), want="logits")
            for at in range(5)
        ]
        return [first, *more]

    expected = []
    for seed in range(12):
        worker = worker_of(shard, driver)
        events = [event for span in spans(worker.open(b"s"), seed) for event in worker.run(span)]
        expected.append(b"".join(bytes(event.data) for event in events))
    worker = worker_of(shard, driver, COSTS[3])
    names = [worker.open(b"s%d" % seed) for seed in range(12)]
    for number in range(6):
        for seed, name in enumerate(names):
            worker.submit(spans(name, seed)[number])
    events = worker.events()
    for name, wanted in zip(names, expected, strict=True):
        assert result(events, name)[0] == wanted
