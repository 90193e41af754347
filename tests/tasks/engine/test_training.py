"""Training passes in the worker's core: memory, order, hostile frames, decoding between units."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import astuple

from shoal.tasks.engine import training
from shoal.tasks.engine.adapters import AdapterTerms
from shoal.tasks.engine.defaults import PASS_PART, PASS_TEXTS_S, PASS_UNIT_S, STEP_S
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts, Span, TokenEvent
from shoal.tasks.engine.messages import load_payload, parse_event
from shoal.tasks.engine.passes import OpenTuning, PassOrder, tensor_sizes
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.training import PassTime
from shoal.transport.message import pack
from tests.tasks.engine.conftest import Checkpoint, Driver, Make

ROOT = "ab" * 32
TERMS = AdapterTerms(ROOT, 4, 8.0, False, "F32", ("q_proj", "down_proj"), (0, 1, 2, 3))
SESSION = 16, "gateway", False, b"", 0, None, ""  # fields of `open` after the name
NAME = b"tuning".ljust(16, b".")


class Trainer:
    """A trainer of a driver's shard."""

    def __init__(
        self, driver: Driver, made: Checkpoint, parts: Parts | None = None, *, name: bytes = NAME,
        owner: str = "trainer", own: bool = False,
    ) -> None:  # fmt: skip
        self.driver, self.name = driver, name
        self.arch = architecture(made.config)
        self.parts = parts or made.whole
        self.sizes = tensor_sizes(TERMS, self.arch, self.parts)
        order = OpenTuning(0, owner, own, TERMS)
        assert driver.request("tune-open", name, payload=pack(order))[0] == "ok"
        self.set()

    def set(self) -> None:
        values = np.random.default_rng(1).standard_normal(sum(self.sizes), np.float32) * 0.1
        data = values.astype(np.float32).tobytes()
        assert self.driver.request("tune-set", self.name, payload=data)[0] == "ok"

    def order(self, **changes: Any) -> PassOrder:
        head = self.parts.head
        values: dict[str, Any] = {
            "part": 1, "rows": 2, "length": 16, "back": head, "given": True, "keep": True,
            "down": True, "wire": "float32", "wanted": b"\1" * len(self.sizes), **changes,
        }  # fmt: skip
        return PassOrder(**values)

    def submit(self, data: bytes | None = None, *, number: int = 9, **changes: Any) -> None:
        order = self.order(**changes)
        data = self.data(order) if data is None else data
        with torch.inference_mode():
            frame = ("tune", number, self.name, astuple(order))
            self.driver.core.handle(frame, memoryview(bytearray(data)))

    def data(self, order: PassOrder) -> bytes:
        ids = np.arange(order.positions, dtype=np.int32) % self.arch.vocab
        first = ids.tobytes() if self.parts.embedding else bytes(4 * self.arch.hidden * len(ids))
        return first + (ids.tobytes() if self.parts.head else b"")

    def run(self, data: bytes | None = None, **changes: Any) -> tuple[Any, ...]:
        """Compute a pass, and return the answer's header and data."""
        self.submit(data, **changes)
        while self.driver.core.busy:
            self.driver.step()
        header, payload = self.driver.frames.pop()
        return (*header, payload)


@pytest.fixture
def made(checkpoint: Make) -> Checkpoint:
    return checkpoint("Llama")


def test_a_pass_is_answered(made: Checkpoint) -> None:
    trainer = Trainer(Driver(made.shard()), made)
    kind, number, (loss, counted, seconds, predicted), data = trainer.run()
    assert (kind, number, counted) == ("ok", 9, 32) and loss > 0 and seconds > 0 and predicted > 0
    assert len(data) == 4 * sum(trainer.sizes) and np.frombuffer(data, np.float32).any()
    assert trainer.run()[3] == data
    assert len(trainer.run(wanted=b"\1" + bytes(15))[3]) == 4 * trainer.sizes[0]


def test_all_memory_is_given_back(made: Checkpoint) -> None:
    driver = Driver(made.shard())
    trainer = Trainer(driver, made, name=b"a" * 16)
    used = driver.core.training.used_bytes
    assert used == 4 * sum(trainer.sizes)
    trainer.run()
    assert trainer.run(rows=0, data=b"")[0] == "refused"
    assert driver.core.training.used_bytes == used
    trainer.submit()
    driver.step()
    assert driver.core.training.used_bytes > used
    assert driver.request("tune-close", trainer.name)[0] == "ok"
    assert driver.core.training.used_bytes == 0 and not driver.core.busy
    assert driver.frames.pop()[0][2] == "cancelled"


def test_what_a_forward_pass_keeps_is_bounded_and_may_be_sent_again(
    made: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(True, 0, 2, False)
    driver = Driver(made.shard(parts))
    trainer = Trainer(driver, made, parts)
    training_ = driver.core.training
    used = training_.used_bytes
    order = trainer.order()
    gradient = bytes(4 * order.positions * trainer.arch.hidden)
    for part in (1, 2, 3):
        assert trainer.run(part=part, back=False)[0] == "ok"
    assert training_.used_bytes > used
    first = trainer.run(gradient, part=1, back=True, given=False)
    assert first[0] == "ok"
    again = trainer.run(gradient, part=1, back=True, given=False)
    assert again[:3] == ("refused", 9, "no-input")
    sent = trainer.data(order) + gradient
    assert trainer.run(sent, part=1, back=True)[3] == first[3]
    # With little memory, the oldest is dropped for a new one.
    work = driver.shard.tuner().work_bytes(order)
    monkeypatch.setattr(training, "TUNING_BYTES", training_.used_bytes + work + 10_000)
    for part in (4, 5, 6, 7):
        assert trainer.run(part=part, back=False)[0] == "ok"
    assert trainer.run(gradient, part=2, back=True, given=False)[2] == "no-input"
    assert trainer.run(gradient, part=7, back=True, given=False)[0] == "ok"
    monkeypatch.setattr(training, "TUNING_BYTES", used + 1000)
    assert trainer.run(back=False)[2] == "no-memory"
    assert driver.request("tune-close", NAME)[0] == "ok" and training_.used_bytes == 0


def test_new_tensors_make_what_was_kept_void(made: Checkpoint) -> None:
    parts = Parts(True, 0, 2, False)
    driver = Driver(made.shard(parts))
    trainer = Trainer(driver, made, parts)
    assert trainer.run(back=False)[0] == "ok"
    trainer.submit(back=False)
    refused = driver.request("tune-set", NAME, payload=b"")
    assert refused[:2] == ("refused", "busy")
    while driver.core.busy:
        driver.step()
    trainer.set()
    gradient = bytes(4 * 32 * trainer.arch.hidden)
    assert trainer.run(gradient, back=True, given=False)[2] == "no-input"


FRAMES: list[tuple[str, tuple[object, ...], bytes, str]] = [
    ("tune-open", (b"short",), b"", "bad-span"),
    ("tune-open", (b"x" * 16,), b"\xc1", "bad-adapter"),
    ("tune-open", (NAME,), pack(OpenTuning(0, "t", False, TERMS)), "session-exists"),
    ("tune-open", (b"x" * 16,), pack(OpenTuning(7, "t", False, TERMS)), "no-shard"),
    ("tune-set", (b"x" * 16,), b"", "unknown-session"),
    ("tune-set", (NAME,), bytes(8), "bad-adapter"),
]


@pytest.mark.parametrize(("name", "fields", "payload", "code"), FRAMES)
def test_malformed_requests_are_refused(
    made: Checkpoint, name: str, fields: tuple[object, ...], payload: bytes, code: str
) -> None:
    driver = Driver(made.shard())
    trainer = Trainer(driver, made)
    assert driver.request(name, *fields, payload=payload)[:2] == ("refused", code)
    assert trainer.run()[0] == "ok"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:-4], "bad-hidden"),
        (lambda data: b"\xff\xff\xff\x7f" + data[4:], "bad-token"),
        (lambda data: b"\xff\xff\xff\xff" + data[4:], "bad-token"),
        (lambda data: data[:-4] + b"\xff\xff\xff\x7f", "bad-token"),
    ],
)
def test_values_of_a_pass_are_checked(
    made: Checkpoint, change: Callable[[bytes], bytes], code: str
) -> None:
    trainer = Trainer(Driver(made.shard()), made)
    assert trainer.run(change(trainer.data(trainer.order())))[2] == code
    assert trainer.run()[0] == "ok"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_states_gradients_and_tensors_are_finite(made: Checkpoint, value: float) -> None:
    parts = Parts(False, 1, 3, False)
    driver = Driver(made.shard(parts))
    trainer = Trainer(driver, made, parts)
    states = np.zeros(32 * trainer.arch.hidden, np.float32)
    bad = states.copy()
    bad[5] = value
    assert trainer.run(bad.tobytes(), back=False)[2] == "not-finite"
    both = states.tobytes() + bad.tobytes()
    assert trainer.run(both, back=True)[2] == "not-finite"
    huge = np.full(32 * trainer.arch.hidden, 3e38, np.float32)
    assert trainer.run(states.tobytes() + huge.tobytes(), back=True)[2] == "not-finite"
    tensors = np.zeros(sum(trainer.sizes), np.float32)
    tensors[-1] = value
    refused = driver.request("tune-set", NAME, payload=tensors.tobytes())
    assert refused[:2] == ("refused", "bad-adapter")


def test_a_text_goes_on_between_the_units_of_a_pass(made: Checkpoint) -> None:
    driver = Driver(made.shard())
    trainer = Trainer(driver, made)
    session = driver.open(b"text")
    trainer.submit(rows=8, length=60)
    driver.submit(Span(session, 1, 0, 4, tokens=(1, 2, 3, 4), want="token", steps=40))
    kinds = []
    while driver.core.busy:
        driver.step()
        frames, driver.frames = driver.frames, []
        kinds += ["pass" if header[0] == "ok" else "token" for header, _ in frames]
        assert all(parse_event(h, p) for h, p in frames if h[0] != "ok")
    assert kinds.count("token") == 40 and kinds.count("pass") == 1
    assert kinds[-1] == "pass", "the text had the time first"
    text = Driver(made.shard())
    name = text.open(b"text")
    alone = text.tokens(Span(name, 1, 0, 4, tokens=(1, 2, 3, 4), want="token", steps=40))
    assert len(alone) == 40


def test_a_pass_is_not_starved_by_texts(made: Checkpoint) -> None:
    """It gets a part of the time of endless texts."""
    driver = Driver(made.shard())
    trainer = Trainer(driver, made)
    session = driver.open(b"text", 90)
    trainer.submit(rows=1, length=8)
    done = 0
    for turn in range(1000):
        at = turn % 80
        driver.submit(Span(session, turn + 1, 0, 1, tokens=(1,), want="token"))
        for each in range(3):
            driver.submit(Span(session, turn + 1, 1 + each, 1, tokens=(at,), want="token"))
        driver.step()
        done += sum(header[0] == "ok" for header, _ in driver.frames)
        driver.frames.clear()
        if done:
            break
    assert done == 1 and turn > 1


def test_the_time_of_passes() -> None:
    time = PassTime()
    assert time.unit_s(0.0) == STEP_S, "nobody waits"
    assert not time.has_credit, "no step has earned any"
    time.stepped(0.04, 0.04, background=False, now=1.0)
    assert time.unit_s(1.0) == 0.002 and time.unit_s(1.0 + PASS_TEXTS_S) == STEP_S
    assert time.has_credit
    time.used(0.006)
    assert not time.has_credit, "units may cost more than was earned"
    time.stepped(0.01, 0.001, background=False, now=2.0)
    assert time.unit_s(2.0) == PASS_UNIT_S and not time.has_credit
    time.stepped(0.01, 0.01, background=True, now=3.0)
    assert time.has_credit, "jobs share equally"


def test_units_beside_texts_have_a_part_of_the_time(made: Checkpoint) -> None:
    """Each step is a call of its own, and so is each unit: between two of them the worker reads its
    socket."""
    driver = Driver(made.shard())
    driver.shard.costs = StepCosts(0.1, 0.01, 0.0)
    trainer, training = Trainer(driver, made), driver.core.training
    spent, compute = [0.0], training._unit

    def unit() -> float:
        seconds = compute()
        spent.append(seconds)
        return seconds

    training._unit = unit  # type: ignore[method-assign]
    for number in range(8):
        trainer.submit(number=number, part=number, rows=8, length=60)
    session = driver.open(b"text", 90)
    driver.submit(Span(session, 1, 0, 4, tokens=(1, 2, 3, 4), want="token", steps=80))
    tokens = calls = 0
    while driver.core.runner.scheduler.busy:
        driver.step()
        calls += 1
        tokens += sum(header[0] == "token" for header, _ in driver.frames)
        driver.frames.clear()
    assert tokens == 80 and calls == 80 + len(spent) - 1
    assert 0 < sum(spent) <= 80 * 0.12 * PASS_PART + max(spent)


def test_this_machine_s_trainer_comes_first_and_others_by_turns(made: Checkpoint) -> None:
    driver = Driver(made.shard())
    names = [bytes([number]) * 16 for number in range(3)]
    one = Trainer(driver, made, name=names[0], owner="one")
    two = Trainer(driver, made, name=names[1], owner="two")
    own = Trainer(driver, made, name=names[2], owner="own", own=True)
    for number in range(3):
        one.submit(number=10 + number, part=number)
    for number in range(3):
        two.submit(number=20 + number, part=number)
    driver.step()
    own.submit(number=30)
    while driver.core.busy:
        driver.step()
    order = [int(str(header[1])) for header, _ in driver.frames]
    assert order[0] == 30 and sorted(order[1:3]) == [10, 20] and sorted(order[3:5]) == [11, 21]


def test_a_cancelled_pass_and_a_dropped_shard(made: Checkpoint) -> None:
    driver = Driver(made.shard())
    trainer = Trainer(driver, made)
    trainer.submit(number=1, part=5)
    trainer.submit(number=2, part=6)
    driver.step()
    driver.core.handle(("tune-stop", NAME, 5), memoryview(b""))
    assert driver.frames.pop()[0][:3] == ("refused", 1, "cancelled")
    driver.core.handle(("unload", 3, 0), memoryview(b""))
    codes = {header[1]: header[2] for header, _ in driver.frames}
    assert codes[2] == "shard-replaced" and not driver.core.busy
    assert driver.core.training.used_bytes == 0


def test_events_are_no_tokens(made: Checkpoint) -> None:
    """The frames of passes do not look like events of sessions."""
    driver = Driver(made.shard())
    session = driver.open(b"text")
    (event,) = driver.run(Span(session, 1, 0, 2, tokens=(1, 2), want="token"))
    assert isinstance(event, TokenEvent)


def test_memory_in_place_of_kv_is_reserved(made: Checkpoint) -> None:
    """Sessions and tunings together never exceed the memory limit."""
    driver = Driver(made.shard(), memory_bytes=Driver(made.shard()).shard.bytes)
    pool, training_, each = driver.shard.pool, driver.core.training, driver.shard.block_bytes
    trainer = Trainer(driver, made)
    tensors = pool.promised
    assert tensors * each >= training_.used_bytes == 4 * sum(trainer.sizes)
    trainer.submit()
    assert pool.promised * each >= training_._needed > 4 * sum(trainer.sizes)
    assert pool.used == pool.promised and training_.beside_kv == 0
    while driver.core.busy:
        driver.step()
    assert driver.frames.pop()[0][0] == "ok" and pool.promised == tensors
    promised = 0
    while driver.request("open", promised.to_bytes(16), *SESSION)[0] == "ok":
        promised += 1
    assert promised == pool.total - tensors
    assert trainer.run()[2] == "no-memory"
    assert driver.request("tune-close", NAME)[0] == "ok" and pool.promised == promised


def test_what_passes_keep_gives_way_to_sessions(made: Checkpoint) -> None:
    parts = Parts(True, 0, 2, False)
    driver = Driver(made.shard(parts), memory_bytes=Driver(made.shard(parts)).shard.bytes)
    pool = driver.shard.pool
    trainer = Trainer(driver, made, parts)
    tensors = pool.promised
    for part in range(1, 9):
        assert trainer.run(part=part, back=False)[0] == "ok"
    assert pool.promised > tensors + 8
    for number in range(pool.total - tensors):
        assert driver.request("open", number.to_bytes(16), *SESSION)[0] == "ok"
    assert pool.promised == pool.total


def test_tunings_give_way_to_a_shard(made: Checkpoint) -> None:
    size = Driver(made.shard()).shard.bytes
    driver = Driver(made.shard(), memory_bytes=2 * size)
    Trainer(driver, made)
    assert driver.core.training.beside_kv > 0 == driver.shard.pool.promised
    assert driver.request("load", 1, payload=load_payload(made.shard()))[0] == "ok"
    assert driver.core.training.count == driver.core.training.used_bytes == 0


def test_tunings_and_waiting_passes_are_bounded(
    made: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PASSES", 3)
    monkeypatch.setattr(training, "TUNINGS", 2)
    driver = Driver(made.shard())
    trainer = Trainer(driver, made)
    Trainer(driver, made, name=b"second".ljust(16, b"."))
    order = pack(OpenTuning(0, "trainer", False, TERMS))
    third = driver.request("tune-open", b"third".ljust(16, b"."), payload=order)
    assert third[:2] == ("refused", "too-many")
    for part in range(4):
        trainer.submit(part=part, number=part)
    assert [header[:3] for header, _ in driver.frames] == [("refused", 3, "too-many")]
    assert driver.request("tune-close", NAME)[0] == "ok"
