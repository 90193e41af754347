"""Quantised values keep the bounds of their layout, and are better than plain rounding."""

import numpy as np
import pytest

from shoal.tasks.engine.layouts import INT4, INT8, INT8_SMALL, Layout
from shoal.tasks.models.quantise import Floats, packed_levels, quantise, values

RNG = np.random.default_rng(5)


def random_weight(rows: int = 40, columns: int = 128) -> Floats:
    return RNG.standard_normal((rows, columns)).astype(np.float32)


def groups(weight: Floats, layout: Layout) -> Floats:
    return weight.reshape(-1, layout.group)


@pytest.mark.parametrize("layout", [INT8, INT8_SMALL], ids=lambda each: each.name)
def test_int8_is_within_half_a_step(layout: Layout) -> None:
    weight = random_weight()
    parts = quantise(weight, layout)
    assert parts[""].dtype == np.int8 and parts[".scale"].dtype == np.float16
    assert parts[""].shape == weight.shape
    assert parts[".scale"].shape == (40, 128 // layout.group)
    step = np.abs(groups(weight, layout)).max(1, keepdims=True) / 127
    error = np.abs(groups(values(parts, layout), layout) - groups(weight, layout))
    assert (error <= step * (0.5 + 127 * 2**-11)).all()  # the scale is rounded to 11 bits


def test_int4_beats_rounding_within_the_range() -> None:
    weight = random_weight()
    parts = quantise(weight, INT4)
    assert parts[""].shape == (40, 64) and parts[""].dtype == np.uint8
    error = np.square(groups(values(parts, INT4) - weight, INT4)).sum(1)
    low, high = groups(weight, INT4).min(1), groups(weight, INT4).max(1)
    step = ((high - low) / 15).astype(np.float16).astype(np.float32)[:, None]
    base = low.astype(np.float16).astype(np.float32)[:, None]
    plain = np.rint((groups(weight, INT4) - base) / step).clip(0, 15) * step + base
    rounded = np.square(plain - groups(weight, INT4)).sum(1)
    assert (error <= rounded + 1e-6).all()
    assert error.sum() < 0.9 * rounded.sum()


def test_nibbles_lie_as_specified() -> None:
    levels = np.arange(32, dtype=np.uint8).reshape(1, 32) % 16
    packed = packed_levels(levels)
    assert packed[0].tolist() == [level | level << 4 for level in range(16)]
    weight = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    parts = quantise(weight, INT4)
    low, high = parts[""][0] & 15, parts[""][0] >> 4
    assert low.tolist() == sorted(low) and high.tolist() == sorted(high) and low[-1] <= high[0]


@pytest.mark.parametrize("layout", [INT8, INT8_SMALL, INT4], ids=lambda each: each.name)
@pytest.mark.parametrize("value", [0.0, 1.5, -3.0, 1e-9, 6e4])
def test_constant_groups_are_exact_or_tiny(layout: Layout, value: float) -> None:
    weight = np.full((2, 64), value, np.float32)
    near = values(quantise(weight, layout), layout)
    assert np.isfinite(near).all()
    assert np.abs(near - weight).max() <= max(1e-7, abs(value) * 2**-10)


def test_outliers_do_not_overflow_the_scale() -> None:
    weight = random_weight(2, 32)
    weight[0, 0] = 6e4
    for layout in (INT8, INT4):
        assert np.isfinite(values(quantise(weight, layout), layout)).all()
