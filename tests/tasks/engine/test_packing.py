"""Hidden states packed as int8: their error, their size, and what a hostile peer may send."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.tasks.engine.activations.layout import packed_bytes
from shoal.tasks.engine.activations.packing import pack, unpack
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import FailedEvent, Span

BAD_SCALES = [0x7C00, 0xFC00, 0x7E00, 0x8001, 0xBC00]  # inf, -inf, NaN, below 0, -1


def packed(rows: torch.Tensor) -> bytearray:
    return bytearray(pack(rows).numpy().tobytes())


@pytest.mark.parametrize("hidden", [1, 32, 64, 100, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_return_within_half_a_step_of_their_block(hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rows = (torch.randn(5, hidden) * torch.logspace(-3, 3, 5)[:, None]).to(dtype)
    data = packed(rows)
    assert len(data) == 5 * packed_bytes(hidden)
    back = unpack(data, 5, hidden, torch.float32)
    blocks = torch.nn.functional.pad(rows.float(), (0, -hidden % 64)).view(5, -1, 64)
    steps = blocks.abs().amax(2, keepdim=True) / 127
    error = torch.nn.functional.pad(back - rows.float(), (0, -hidden % 64)).view(5, -1, 64)
    assert bool((error.abs() <= 0.5 * steps * 1.07 + 1e-6).all())  # a scale is rounded to float16


def test_an_outlier_spoils_its_own_block_only() -> None:
    torch.manual_seed(1)
    rows = torch.randn(1, 256)
    rows[0, 3] = 1000.0
    back = unpack(packed(rows), 1, 256, torch.float32)
    assert float((back - rows)[0, 64:].abs().max()) < 0.02
    assert float((back - rows)[0, :64].abs().max()) > 1.0


def test_zeros_and_the_largest_values_survive() -> None:
    rows = torch.zeros(3, 64)
    rows[1, 5], rows[2, 7] = 1e30, -1e-30
    back = unpack(packed(rows), 3, 64, torch.bfloat16)
    assert bool(torch.isfinite(back).all())
    assert float(back[1, 5]) > 8e6
    assert not bool(back[0].any() or back[2].any())


def test_a_row_is_the_same_among_any_others() -> None:
    torch.manual_seed(1)
    rows = torch.randn(8, 100)
    data, width = packed(rows), packed_bytes(100)
    assert bytearray().join(packed(row[None]) for row in rows) == data
    part = unpack(data[3 * width : 5 * width], 2, 100, torch.float32)
    assert torch.equal(part, unpack(data, 8, 100, torch.float32)[3:5])


@pytest.mark.parametrize("change", [-1, 1, 66, -66])
def test_another_size_is_refused(change: int) -> None:
    data = (packed(torch.ones(2, 64)) + bytearray(66))[: 2 * 66 + change]
    with pytest.raises(EngineError, match="2 packed rows") as caught:
        unpack(data, 2, 64, torch.float32)
    assert caught.value.code == "bad-hidden"


@pytest.mark.parametrize("scale", BAD_SCALES)
def test_scales_that_no_honest_peer_sends_are_refused(scale: int) -> None:
    data = packed(torch.ones(2, 64))
    data[-2:] = scale.to_bytes(2, "little")
    with pytest.raises(EngineError) as caught:
        unpack(data, 2, 64, torch.float32)
    assert caught.value.code == "not-finite"


@pytest.fixture
def stages(checkpoint: Any, driver: Any) -> tuple[Any, Any, bytes]:
    made = checkpoint("Llama", hidden_size=128)
    first, last = (driver(made.shard(parts)) for parts in made.splits(2))
    name = b"s".ljust(16, b".")
    for stage in first, last:
        stage.open(name, packed=True)
    return first, last, name


def test_packed_sessions_nearly_compute_the_exact_logits(stages: Any, checkpoint: Any) -> None:
    first, last, name = stages
    made = checkpoint("Llama", hidden_size=128)
    tokens = tuple(range(1, 21))
    span = Span(name, 1, 0, 20, tokens=tokens)
    data = first.hidden(span)
    assert len(data) == 20 * packed_bytes(128)
    out = last.hidden(replace(span, tokens=None, hidden=data, want="logits"))
    logits = torch.frombuffer(bytearray(out), dtype=torch.float32).view(20, -1)
    exact = made.logits(tokens)
    error = float((logits - exact).norm() / exact.norm())
    assert 1e-5 < error < 0.03  # it is packed, and close


def test_hostile_packed_states_fail_their_span_only(stages: Any) -> None:
    first, last, name = stages
    span = Span(name, 1, 0, 2, tokens=(3, 4))
    data = first.hidden(span)
    given = replace(span, tokens=None, hidden=data, want="token")
    hostile = bytearray(data)
    hostile[-1] = 0x7E
    exact = bytes(2 * 128 * 4)  # as an exact session would send them
    for wrong, code in ((hostile, "not-finite"), (exact, "bad-hidden"), (data[:-1], "bad-hidden")):
        (event,) = last.run(replace(given, hidden=bytes(wrong)))
        assert isinstance(event, FailedEvent)
        assert event.code == code
    assert len(last.tokens(replace(given, epoch=2))) == 1


def test_an_exact_session_refuses_packed_states(stages: Any) -> None:
    first, last, name = stages
    data = first.hidden(Span(name, 1, 0, 2, tokens=(3, 4)))
    other = last.open(b"exact")
    (event,) = last.run(Span(other, 1, 0, 2, hidden=data, want="token"))
    assert isinstance(event, FailedEvent)
    assert event.code == "bad-hidden"
