"""Results of the native kernels that are not finite: computed once more by torch, then refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from shoal.tasks.engine import defaults
from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.compute.native.library import NativeLinear
from shoal.tasks.engine.compute.native.reference import TorchLinear, in_torch
from shoal.tasks.engine.compute.products import BiasedLinear, linear_of, linear_of_quantised
from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.interface import FailedEvent, HiddenEvent, Sampling, Span, Want
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.spans import runner
from tests.tasks.engine.test_batch import worker_of
from tests.tasks.engine.test_products import quantised

PROMPT = (5, 60, 12, 7, 33, 90, 2, 41)
NEW = 12
NAN = float("nan")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels compute whatever they can, however fast they are beside other programs."""
    found = choice.choice()
    if found.kernels is None:
        pytest.skip("no compiler built the kernels")
    monkeypatch.setattr(choice, "choice", lambda: replace(found, slow={}))


@pytest.fixture
def made(checkpoint: Any) -> Any:
    return checkpoint("Llama", hidden_size=64)  # heads of 16 values, as the kernels need


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit of the time that this takes."""
    monkeypatch.setattr(runner, "REFERENCE_PART", float("inf"))


class Faults:
    """Makes the native steps of a worker return NaN in the rows of some calls."""

    def __init__(self, worker: Any, wrong: Callable[[int, Sequence[Any]], Sequence[int]]) -> None:
        """`wrong` returns, for the number of a call and its pieces, those that are wrong."""
        compute = worker.shard.compute
        assert compute.steps is not None
        self.calls = self.again = 0
        forward, reference = compute.steps.forward, compute._reference

        def faulty(x: torch.Tensor, pieces: Sequence[Any], stop: Any = None) -> torch.Tensor:
            self.calls += 1
            rows: torch.Tensor = forward(x, pieces, stop)
            bad, first = wrong(self.calls - 1, pieces), 0
            for number, piece in enumerate(pieces):
                if number in bad:
                    rows[first : first + piece.count] = NAN
                first += piece.count
            return rows

        def counted() -> TorchCompute:
            self.again += 1
            found: TorchCompute = reference()
            return found

        compute.steps.forward, compute._reference = faulty, counted


def ask(worker: Any, name: bytes, **more: Any) -> Span:
    given: dict[str, Any] = {"tokens": PROMPT, "want": "token", "steps": NEW}
    return Span(worker.open(name, 90), 0, 0, 8, **(given | more))


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_wrong_step_costs_no_answer(made: Any, driver: Any, unlimited: None, at: int) -> None:
    """At the prompt, or at a token of the text; the rows of others have the same bits."""
    alone = driver(made.shard())
    expected = alone.run(ask(alone, b"mate"))
    worker = driver(made.shard())
    faults = Faults(worker, lambda call, _: (0,) if call == at else ())
    wrong, mate = ask(worker, b"wrong"), ask(worker, b"mate")
    worker.submit(wrong)
    worker.submit(mate)
    events = worker.events()
    assert [each.token for each in events if each.session == wrong.session] == made.greedy(
        PROMPT, NEW
    )
    there = [(each.token, each.logprob) for each in events if each.session == mate.session]
    assert there == [(each.token, each.logprob) for each in expected]
    assert faults.again == 1


def test_kernels_that_are_always_wrong_leave_the_text_right(
    made: Any, driver: Any, unlimited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = driver(made.shard())
    faults = Faults(worker, lambda _, pieces: range(len(pieces)))
    product = NativeLinear.__call__
    with monkeypatch.context() as patch:
        patch.setattr(NativeLinear, "__call__", lambda self, x: product(self, x) * NAN)
        assert worker.tokens(ask(worker, b"s", steps=1)) == made.greedy(PROMPT, 1)
    assert worker.tokens(ask(worker, b"t")) == made.greedy(PROMPT, NEW)
    assert faults.again == faults.calls == NEW + 1
    drawn = Sampling(1.0, seed=5)
    right = driver(made.shard())
    assert worker.tokens(ask(worker, b"d", sampling=drawn)) == right.tokens(
        ask(right, b"d", sampling=drawn)
    )


@pytest.mark.parametrize("want", ["hidden", "logits", "pooled"])
def test_values_are_computed_again(made: Any, driver: Any, unlimited: None, want: Want) -> None:
    worker, right = driver(made.shard()), driver(made.shard())
    Faults(worker, lambda _, pieces: range(len(pieces)))
    (found,) = worker.run(ask(worker, b"s", want=want, steps=1))
    (expected,) = right.run(ask(right, b"s", want=want, steps=1))
    assert isinstance(found, HiddenEvent) and isinstance(expected, HiddenEvent)
    assert np.frombuffer(found.data, np.float32) == pytest.approx(
        np.frombuffer(expected.data, np.float32), abs=1e-4
    )


@pytest.mark.parametrize("want", ["hidden", "pooled"])
def test_a_long_span_is_computed_again_from_its_beginning(
    made: Any, driver: Any, unlimited: None, want: Want
) -> None:
    def found(wrong: int) -> tuple[Any, Faults]:
        worker = worker_of(made.shard(), driver, StepCosts(0.0, 0.5 / 16, 0.0))
        faults = Faults(worker, lambda call, _: (0,) if call == wrong else ())
        tokens = tuple(at * 7 % 101 for at in range(60))
        span = Span(worker.open(b"s", 90), 0, 0, 60, tokens=tokens, want=want)
        (event,) = worker.run(span)
        assert isinstance(event, HiddenEvent)
        return np.frombuffer(event.data, np.float32), faults

    expected, faults = found(wrong=-1)
    assert faults.calls > 2
    again, _ = found(wrong=2)
    assert again == pytest.approx(expected, abs=1e-3)


def test_a_head_whose_product_is_wrong(
    made: Any, driver: Any, unlimited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = driver(made.shard())
    head, product = worker.shard.compute._head, NativeLinear.__call__
    assert isinstance(head, NativeLinear)
    monkeypatch.setattr(
        NativeLinear,
        "__call__",
        lambda self, x: product(self, x) * (NAN if self is head else 1.0),
    )
    assert worker.tokens(ask(worker, b"s")) == made.greedy(PROMPT, NEW)


def test_a_guess_behind_a_wrong_row_repeats_no_token(
    made: Any, driver: Any, unlimited: None
) -> None:
    expected = made.greedy(PROMPT, NEW)
    for wrong in range(1, 6):
        worker = driver(made.shard())
        faults = Faults(worker, partial(at_second_call, wrong))
        span = ask(worker, b"s")
        guess = Span(span.session, 0, 8, 6, tokens=tuple(expected[:6]), want="token", draft=True)
        worker.submit(guess)
        worker.submit(span)
        events = worker.events()
        assert [each.token for each in events] == expected, wrong
        assert [each.position for each in events] == list(range(8, 8 + NEW))
        assert faults.again == 1


def at_second_call(wrong: int, call: int, _pieces: Sequence[Any]) -> Sequence[int]:
    return (wrong,) if call == 1 else ()


@pytest.mark.parametrize("want", ["token", "hidden"])
def test_what_torch_finds_not_finite_too_is_refused(
    made: Any, driver: Any, unlimited: None, want: Want
) -> None:
    worker = driver(made.shard())
    compute = worker.shard.compute
    faults = Faults(worker, lambda *_: ())
    embed = compute.embed
    compute.embed = lambda tokens: torch.where((tokens == 90)[:, None], NAN, embed(tokens))
    (event,) = worker.run(ask(worker, b"s", want=want, steps=1))
    assert isinstance(event, FailedEvent) and event.code == "not-finite"
    assert (faults.calls, faults.again) == (1, 1)
    good = ask(worker, b"t", tokens=(1, *PROMPT[1:5], 7, 7, 7))
    assert worker.tokens(good) == made.greedy((1, *PROMPT[1:5], 7, 7, 7), NEW)
    assert worker.shard.pool.free + worker.shard.pool.cached + worker.shard.pool.used > 0


def test_the_time_for_this_is_limited(
    made: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer could otherwise have all its inputs computed in the slow way."""
    worker = driver(made.shard())
    faults = Faults(worker, lambda _, pieces: range(len(pieces)))
    began = worker.core.clock()
    worker.core.runner._repaid_at, now = began, [began]

    def clock() -> float:
        now.append(now[-1] + 0.25)
        return float(now[-1])

    monkeypatch.setattr(worker.core, "clock", clock)
    (event,) = worker.run(ask(worker, b"s", steps=1))
    assert not isinstance(event, FailedEvent), "the first one"
    took = worker.core.runner._reference_s
    assert took > 0 and faults.again == 1
    (event,) = worker.run(ask(worker, b"t", steps=1))
    assert isinstance(event, FailedEvent) and event.code == "not-finite" and faults.again == 1
    now.append(began + 101 * took)
    (event,) = worker.run(ask(worker, b"u", steps=1))
    assert not isinstance(event, FailedEvent) and faults.again == 2


def test_no_more_than_some_seconds_are_saved_up(
    made: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that waits for a day could otherwise delay all other sessions for 15 minutes."""
    worker = driver(made.shard())
    faults = Faults(worker, lambda _, pieces: range(len(pieces)))
    now = [worker.core.clock() + 24 * 3600.0]

    def clock() -> float:
        now.append(now[-1] + 0.25)
        return float(now[-1])

    monkeypatch.setattr(worker.core, "clock", clock)
    for number in range(40):
        worker.run(ask(worker, b"saved %d" % number, steps=1))
    repaid = defaults.REFERENCE_PART * (now[-1] - now[0])
    assert 3 <= faults.again <= (defaults.REFERENCE_SAVED + repaid) / 0.25 + 1


def test_the_daemon_hears_of_a_slow_step(made: Any, driver: Any, unlimited: None) -> None:
    """Its watchdog would otherwise give up all sessions of the worker."""
    worker = driver(made.shard())
    Faults(worker, lambda call, _: (0,) if call == 0 else ())
    worker.submit(ask(worker, b"s", steps=1))
    worker.step()
    assert worker.frames == []
    worker.step()
    alive = [header for header, _ in worker.frames if header == ("ok", 0, None)]
    assert len(alive) == made.layers


def test_without_kernels_nothing_is_computed_twice(
    made: Any, driver: Any, unlimited: None, exact_products: None
) -> None:
    worker = driver(made.shard())
    assert not worker.shard.compute.has_reference


@pytest.mark.parametrize("inputs", [96, 160])
def test_products_in_torch_equal_those_of_the_kernels(inputs: int) -> None:
    generator = torch.Generator().manual_seed(4)
    x, bias = torch.randn(3, inputs, generator=generator), torch.randn(130, generator=generator)
    linears = []
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(130, inputs, generator=generator).to(dtype)
        linears.append(linear_of(weight, bias.to(dtype)))
    for layout in ("int8", "int4"):
        q = quantised(layout, 130, inputs, 32)
        linears.append(linear_of_quantised(layout, q.q, q.scale, q.minimum, bias))
    for linear in linears:
        if isinstance(linear, NativeLinear):  # torch may be faster for a dtype
            biased = in_torch(BiasedLinear(linear, bias))
            assert isinstance(biased, BiasedLinear) and isinstance(biased.product, TorchLinear)
            found, expected = TorchLinear(linear)(x), linear(x)
            assert float((found - expected).norm() / expected.norm()) < 3e-2
