"""Rotary embedding: cosines and sines by position, and the frequencies of its kinds."""

import math

import torch
from torch.nn import functional as F

from ..defaults import ROPE_BLOCK
from ..families import Rope
from ..interface import DType
from .device import CPU, ComputeDevice
from .weights import TORCH_DTYPES

Turn = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of the rows of a step, each of shape (rows, 1, rotated)."""


class Rotary:
    """Cosines and sines of the rotary embedding by position, extended when sessions need more.

    The first half of `sin` is negated, so that `x * cos + roll(x, d/2) * sin` is the rotation.
    """

    def __init__(
        self, rope: Rope, rotated: int, context: int, dtype: DType, device: ComputeDevice = CPU
    ) -> None:
        """Create the tables of a rotary embedding that turns `rotated` values of each head, for at
        most `context` positions."""
        self._frequencies = frequencies(rope, rotated)
        self._device = device
        self._scale = rope.attention_factor
        self._dtype = TORCH_DTYPES[dtype]
        self._context = context
        self._cos = self._sin = torch.empty(0)

    def rows(self, positions: torch.Tensor, end: int, count: int) -> Turn:
        """Return (cosines, sines) of T positions below `end`, each of shape (count, 1, rotated).

        Rows beyond T are those of position 0.
        """
        self._reach(end)
        positions = F.pad(positions, (0, count - len(positions)))
        return self._cos[positions], self._sin[positions]

    def halves(self, end: int) -> Turn:
        """Return (cosines, sines) of all positions below `end`, and perhaps more, for each rotated
        pair: two matrices (positions x head_dim / 2) in float32, with the values of `rows`."""
        self._reach(end)
        half = self._cos.shape[-1] // 2
        cos, sin = self._cos[:, 0, :half], self._sin[:, 0, half:]
        return cos.float().contiguous(), sin.float().contiguous()

    def _reach(self, end: int) -> None:
        if end > len(self._cos):
            self._grow(min(self._context, max(end, 2 * len(self._cos), ROPE_BLOCK)))

    def first(self, count: int) -> Turn:
        """Return (cosines, sines) of the first `count` positions, or of all if there are fewer, and
        perhaps of more: each of shape (positions, 1, rotated). They stay in their place until more
        are asked for.
        """
        if len(self._cos) < (end := min(count, self._context)):
            self._grow(end)
        return self._cos, self._sin

    def _grow(self, size: int) -> None:
        angles = torch.arange(size).float()[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        # Computed on the CPU, so that all devices have the same values.
        upload = self._device.upload
        self._cos = upload(torch.cat((cos, cos), -1).to(self._dtype)[:, None])
        self._sin = upload(torch.cat((-sin, sin), -1).to(self._dtype)[:, None])


def frequencies(rope: Rope, rotated: int) -> torch.Tensor:
    """Return the radians per position of each rotated pair: rotated / 2 values in float32."""
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.factors, dtype=torch.float32) * rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, rotated, rope.theta**exponents)
    return plain


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of Llama 3.1.

    The factor divides frequencies of long wavelengths; middle ones are interpolated.
    """
    wavelength = 2 * math.pi / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = (rope.original_context / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    scaled = torch.where(wavelength > rope.original_context / low, plain / rope.factor, blended)
    return torch.where(wavelength < rope.original_context / high, plain, scaled)


def _yarn(rope: Rope, rotated: int, periods: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of YaRN (Peng 2023, section 3.2).

    Pairs that rotate often keep their frequency, and slow ones are interpolated.
    """

    def pair_turning(rotations: float) -> float:
        span = rope.original_context / (rotations * 2 * math.pi)
        return rotated * math.log(span) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    high += 0.001 if low == high else 0
    ramp = ((torch.arange(rotated // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - keep) + 1.0 / periods * keep
