"""The numbers of a simulated engine under the rules of the real engine core."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from shoal.netsim.daemons.compute import NumberCompute, Stopwatch, Timed
from shoal.netsim.daemons.profile import PROFILES
from shoal.tasks.engine.adapters import AdapterTerms, LoadAdapter
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.families import Architecture, architecture
from shoal.tasks.engine.interface import (
    DType,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    LoadShard,
    Parts,
    Sampling,
    Span,
    TokenEvent,
)
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable
from shoal.tasks.engine.messages import adapter_payload, load_payload, parse_event, span_frame
from shoal.tasks.engine.shard import Compute, Piece
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header
from shoal.tasks.inference.names import PrefixNames
from tests.netsim.daemons.shards import (
    CHUNK,
    CONFIG,
    LAYERS,
    VOCABULARY,
    WHOLE,
    disk_files,
    parts_of,
    shard,
)

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
NAME = b"session.".ljust(16, b".")
NAMES = PrefixNames(b"secret")


class NumberCore(Core):
    """The real core, computing on numbers."""

    def compute(self, arch: Architecture, shard: LoadShard) -> Compute:
        return NumberCompute(arch, shard, FILES)


FILES = disk_files()


class Stage:
    """One shard, driven by hand."""

    def __init__(self, parts: Parts = WHOLE, **more: Any) -> None:
        self.frames: list[tuple[Header, memoryview]] = []
        self.core = NumberCore(FrameOutput(self._emit), memory_bytes=1 << 30)
        self.loaded = self.request("load", 0, payload=load_payload(shard(FILES, parts, **more)))

    def _emit(self, header: Header, payload: Buffer) -> None:
        self.frames.append((header, memoryview(bytes(payload))))

    def request(self, name: str, *fields: object, payload: bytes = b"") -> tuple[Any, ...]:
        if name == "open":
            # Not this machine's own, not packed, exact, without rules, of no network.
            fields = (*fields, False, False, True, None, "")
        self.core.handle((name, 1, *fields), memoryview(payload))
        header, data = self.frames.pop()
        return (header[0], *header[2:], data)

    def open(self, name: bytes = NAME, tokens: int = 200) -> bytes:
        assert self.request("open", name, tokens, "gateway", False, b"", 0, None, "")[:2] == (
            "ok",
            0,
        )
        return name

    def run(self, span: Span) -> list[EngineEvent]:
        header, payload = span_frame(span)
        self.core.handle(tuple(header), memoryview(bytes(payload)))
        while self.core.busy:
            self.core.step()
        frames, self.frames = self.frames, []
        return [parse_event(header, payload) for header, payload in frames]

    def code(self, span: Span) -> str:
        (event,) = self.run(span)
        assert isinstance(event, FailedEvent), event
        return event.code


class Chain:
    """Stages in a row, all with one session."""

    def __init__(self, ends: Sequence[int], **more: Any) -> None:
        pairs = zip((0, *ends), ends, strict=False)
        self.stages = [Stage(parts_of(start, stop), **more) for start, stop in pairs]
        for stage in self.stages:
            stage.open()

    def next(self, tokens: Sequence[int], start: int = 0, *, epoch: int = 0, **more: Any) -> int:
        """Return the next token."""
        span = Span(NAME, epoch, start, len(tokens), tokens=tuple(tokens))
        for stage in self.stages[:-1]:
            (event,) = stage.run(span)
            assert isinstance(event, HiddenEvent), event
            span = replace(span, tokens=None, hidden=bytes(event.data))
        (token,) = self.stages[-1].run(replace(span, want="token", **more))
        assert isinstance(token, TokenEvent), token
        return token.token

    def say(self, tokens: Sequence[int], count: int) -> list[int]:
        said = [self.next(tokens)]
        for at in range(count - 1):
            said.append(self.next(said[-1:], len(tokens) + at))
        return said


def text(count: int = 12, tokens: Sequence[int] = TOKENS) -> list[int]:
    """Return the tokens of one engine with all layers."""
    stage = Stage()
    stage.open()
    span = Span(NAME, 0, 0, len(tokens), tokens=tuple(tokens), want="token", steps=count)
    return [event.token for event in stage.run(span) if isinstance(event, TokenEvent)]


@pytest.mark.parametrize("ends", [(6,), (3, 6), (1, 2, 3, 4, 5, 6), (5, 6)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_split_gives_the_same_tokens(ends: Sequence[int], dtype: DType) -> None:
    assert Chain(ends, dtype=dtype).say(TOKENS, 12) == text()


def test_an_embedding_and_a_head_alone_are_shards_too() -> None:
    chain = Chain((6,))
    chain.stages = [
        Stage(Parts(True, 0, 0, False)),
        Stage(Parts(False, 0, 6, False)),
        Stage(Parts(False, 6, 6, True)),
    ]
    for stage in chain.stages:
        stage.open()
    assert chain.say(TOKENS, 12) == text()


def test_every_token_before_counts() -> None:
    for at in range(len(TOKENS)):
        changed = (*TOKENS[:at], TOKENS[at] + 1, *TOKENS[at + 1 :])
        assert text(4, changed) != text(4)
    assert text(4, TOKENS[::-1]) != text(4) and text(4, TOKENS[1:]) != text(4)


@pytest.mark.parametrize(
    "order",
    [(0, 2), (0, 1, 1, 2), (0, 2, 1, 2), (1, 2)],
    ids=["missing", "twice", "swapped", "one"],
)
def test_a_wrong_chain_of_layers_gives_other_tokens(order: Sequence[int]) -> None:
    chain = Chain((6,))
    pieces = [(0, 2), (2, 4), (4, 6)]
    chain.stages = [
        Stage(Parts(number == 0, *pieces[piece], number == len(order) - 1))
        for number, piece in enumerate(order)
    ]
    for stage in chain.stages:
        stage.open()
    assert chain.say(TOKENS, 6) != text(6)


def test_a_stage_that_lost_its_session_gives_other_tokens() -> None:
    chain = Chain((2, 4, 6))
    first = chain.next(TOKENS)
    lost = Stage(parts_of(2, 4))
    lost.open()
    lost.run(Span(NAME, 0, 0, 8, hidden=bytes(8 * 64)))  # as long, but of other tokens
    chain.stages[1] = lost
    assert [first, chain.next([first], 8)] != text(2)


def test_another_model_gives_other_tokens() -> None:
    assert Chain((6,), root="cd" * 32).say(TOKENS, 6) != text(6)


def test_truncation_repeats_and_epochs_are_those_of_the_real_engine() -> None:
    stage = Stage()
    stage.open()
    first = stage.run(Span(NAME, 0, 0, 8, tokens=TOKENS, want="token", steps=5))
    assert stage.run(Span(NAME, 0, 0, 8, tokens=TOKENS, want="token", steps=5)) == first
    again = stage.run(Span(NAME, 0, 4, 3, tokens=(7, 8, 9), want="token", steps=3))
    assert [event.token for event in again if isinstance(event, TokenEvent)] == text(
        3, (*TOKENS[:4], 7, 8, 9)
    )
    assert stage.code(Span(NAME, 0, 50, 1, tokens=(1,))) == "gap"
    assert len(stage.run(Span(NAME, 2, 0, 8, tokens=TOKENS, want="token"))) == 1
    assert stage.code(Span(NAME, 1, 0, 8, tokens=TOKENS)) == "old-epoch"


def test_refusals() -> None:
    stage = Stage()
    stage.open()
    assert stage.code(Span(NAME, 0, 0, 1, tokens=(VOCABULARY,))) == "bad-token"
    assert stage.code(Span(NAME, 0, 0, 1, hidden=bytes(63))) == "bad-hidden"
    assert stage.code(Span(NAME, 0, 199, 2, tokens=(1, 2))) == "too-long"
    infinite = np.full(16, np.inf, np.float32).tobytes()
    assert stage.code(Span(NAME, 0, 0, 1, hidden=infinite)) == "not-finite"
    half = Stage(parts_of(0, 3))
    half.open()
    assert half.code(Span(NAME, 0, 0, 1, tokens=(1,), want="token")) == "no-head"
    assert half.request("open", b"x" * 16, 10**5, "gateway", False, b"", 0, None, "")[:2] == (
        "refused",
        "too-long",
    )
    names = (b"n%015d" % number for number in range(1000))
    reply: tuple[Any, ...] = ("ok",)
    while reply[0] == "ok":
        reply = stage.request("open", next(names), 300, "gateway", False, b"", 0, None, "")
    assert reply[:2] == ("refused", "no-memory")


def test_hidden_states_in_bfloat16_are_looked_at() -> None:
    stage = Stage(parts_of(3, 6), dtype="bfloat16")
    stage.open()
    assert stage.code(Span(NAME, 0, 0, 1, hidden=b"\x80\x7f" * 16)) == "not-finite"
    assert len(stage.run(Span(NAME, 0, 0, 1, hidden=b"\x12\x34" * 16))) == 1


def test_state_is_exported_imported_and_forked_exactly() -> None:
    stage = Stage()
    stage.open()
    said = stage.run(Span(NAME, 0, 0, 8, tokens=TOKENS, want="token"))
    assert isinstance(said[0], TokenEvent)
    state = bytes(stage.request("export", NAME)[-1])
    assert len(state) > 8 * LAYERS * 2 * 2 * 4 * 4, "as large as real keys and values"
    other, twin = Stage(), stage.open(b"twin".ljust(16, b"."))
    other.open()
    assert other.request("import", NAME, payload=state)[:2] == ("ok", 8)
    assert stage.request("fork", NAME, twin)[0] == "ok"
    after = Span(NAME, 0, 8, 1, tokens=(said[0].token,), want="token")
    for place, name in ((stage, NAME), (other, NAME), (stage, twin)):
        (event,) = place.run(replace(after, session=name))
        assert isinstance(event, TokenEvent) and event.token == text(2)[1]
    assert bytes(other.request("export", NAME)[-1]) == bytes(stage.request("export", twin)[-1])
    wrong = Stage(parts_of(0, 3))
    wrong.open()
    for bad in (state, b"", state[:40], state[:-1]):
        assert wrong.request("import", NAME, payload=bad)[:2] == ("refused", "bad-state")
    assert other.request("import", NAME, payload=state[:-1])[:2] == ("refused", "bad-state")


def test_sampling_depends_on_the_seed_and_the_position() -> None:
    chain = Chain((3, 6))
    drawn = [
        chain.next(TOKENS, epoch=seed, sampling=Sampling(1.0, seed=seed)) for seed in range(20)
    ]
    assert len(set(drawn)) > 10
    assert chain.next(TOKENS, epoch=30, sampling=Sampling(1.0, seed=7)) == drawn[7]
    assert chain.next(TOKENS, epoch=31, sampling=Sampling(1.0, 1, seed=7)) == text(1)[0]


def test_logits_have_their_largest_at_the_token() -> None:
    stage = Stage()
    stage.open()
    (event,) = stage.run(Span(NAME, 0, 0, 8, tokens=TOKENS, want="logits"))
    assert isinstance(event, HiddenEvent)
    logits = np.frombuffer(event.data, np.float32).reshape(8, VOCABULARY)
    assert int(logits[-1].argmax()) == text(1)[0]


def test_weights_must_be_there_and_right() -> None:
    stage = Stage()
    whole = shard(FILES)
    FILES.write(Path("/chunks/one"), CHUNK + b"?")
    reply = stage.request("load", 0, payload=load_payload(whole))
    assert reply[:2] == ("refused", "digest-mismatch")
    assert stage.code(Span(NAME, 0, 0, 1, tokens=(1,))) == "unknown-session"
    FILES.remove(Path("/chunks/one"))
    assert stage.request("load", 0, payload=load_payload(whole))[:2] == ("refused", "bad-tensor")
    less = replace(whole, tensors=whole.tensors[1:])
    assert stage.request("load", 0, payload=load_payload(less))[:2] == ("refused", "missing-tensor")
    assert stage.request("load", 0, payload=load_payload(shard(FILES)))[0] == "ok"


def test_times_follow_the_machine() -> None:
    files = disk_files()
    arch = architecture({**CONFIG, "hidden_size": 2048, "intermediate_size": 5632})
    inner = NumberCompute(architecture(CONFIG), shard(files), files)
    inner.arch = arch
    spent = {}
    for name in ("raspberry", "desktop"):
        watch = Stopwatch()
        timed = Timed(inner, PROFILES[name], watch)
        tables = [BlockTable(BlockPool(20), 300) for _ in range(16)]
        for table in tables:
            table.prepare(0, 300)
        pieces = [Piece(table, [1], 0, 1, 0, decode=True) for table in tables]
        timed.forward(pieces[:1])
        one = watch.take()
        timed.forward(pieces)
        batch = watch.take()
        timed.forward([Piece(tables[0], list(range(256)), 0, 256, 1, decode=False)])
        spent[name] = one, batch, watch.take()
    for one, batch, many in spent.values():
        assert one < many < 256 * one, "a prompt costs less per token than decoding"
        assert one <= batch < 4 * one, "the weights are read once for all sessions of a step"
    assert spent["raspberry"][0] > 2 * spent["desktop"][0]


def test_batch_mates_and_prefixes_do_not_change_the_text() -> None:
    stage = Stage()
    random = Random(1)
    prompts = [
        tuple(random.randrange(VOCABULARY) for _ in range(random.randint(2, 60))) for _ in range(12)
    ]
    prompts += [(*prompts[0][:16], *prompts[1])]
    for rounds in range(2):
        names = [b"%d %d".ljust(16, b".") % (rounds, number) for number in range(13)]
        names = [name[:16].ljust(16, b".") for name in names]
        for name, prompt in zip(names, prompts, strict=True):
            payload = NAMES.of("ab" * 32, prompt)
            reply = stage.request(
                "open", name, 90, "gateway", False, b"", 0, None, "", payload=payload
            )
            cached = len(prompt) // 16 * 16
            assert reply[:2] == ("ok", cached if rounds else 0)
            start = min(cached, (len(prompt) - 2) // 16 * 16) if rounds else 0
            part = prompt[start:]
            span = Span(name, 0, start, len(part), tokens=part, want="token", steps=20)
            header, data = span_frame(span)
            stage.core.handle(tuple(header), memoryview(bytes(data)))
            if random.random() < 0.5:
                stage.core.step()
        while stage.core.busy:
            stage.core.step()
        events = [parse_event(*frame) for frame in stage.frames]
        stage.frames.clear()
        for name, prompt in zip(names, prompts, strict=True):
            said = [event for event in events if event.session == name]
            assert all(isinstance(event, TokenEvent) for event in said), said
            tokens = [event.token for event in said if isinstance(event, TokenEvent)]
            assert tokens == text(20, prompt)
            assert stage.request("close", name)[0] == "ok"


def test_an_adapter_changes_the_tokens_the_same_on_every_split() -> None:
    """The simulated engine has the adapters of the real one, and numbers in place of tensors."""
    terms = AdapterTerms("ab" * 32, 1, 1.0, False, "F32", ("q_proj",), (1, 4))
    load = LoadAdapter("ef" * 32, terms, 0, ("/chunks/one",), (sha256(CHUNK).digest(),))
    plain = Chain((LAYERS,)).next(TOKENS)

    def adapted(ends: Sequence[int]) -> int:
        chain = Chain(ends)
        for stage in chain.stages:
            assert stage.request("adapt", 0, payload=adapter_payload(load))[0] == "ok"
            assert stage.request("close", NAME)[0] == "ok"
            fields = NAME, 200, "gateway", False, b"", 0, None, load.root
            assert stage.request("open", *fields)[:2] == ("ok", 0)
        return chain.next(TOKENS)

    found = {adapted(ends) for ends in ((LAYERS,), (2, LAYERS), (1, 2, 5, LAYERS))}
    assert len(found) == 1 and found != {plain}
