"""Compares the native kernels with torch on this machine, in some milliseconds, before their
use."""

import ctypes
from itertools import product
from typing import Final

import torch
from torch.nn import functional as F

from .calls import pieces_of, shape_of
from .library import BFLOAT16, FLOAT32, INT4, INT8, KINDS, Attending, Kernels, NativeLinear

_OUTPUTS: Final = 70
_INPUTS: Final = 160
# The largest relative error of a product. Activations are quantised to 8 bits beside INT4, and
# beside INT8 where the machine multiplies integers.
_ALLOWED: Final = {FLOAT32: 1e-5, BFLOAT16: 1e-2, INT8: 3e-2, INT4: 3e-2}


def difference(kernels: Kernels) -> str | None:
    """Return how the kernels differ from torch, or None."""
    generator = torch.Generator().manual_seed(21)
    for kind, allowed in _ALLOWED.items():
        weight, linear = _random(kernels, kind, generator)
        x = torch.randn(9, _INPUTS, generator=generator)
        expected, rows = x @ weight.T, linear(x)
        if not _near(rows, expected, allowed):
            return f"{kernels.name} products of kind {kind} differ from torch"
        if not all(torch.equal(linear(x[i : i + 1])[0], rows[i]) for i in range(9)):
            return f"{kernels.name} products of kind {kind} depend on the number of rows"
    for dtype, decode in product(KINDS, (True, False)):
        if not _attends(kernels, dtype, decode, generator):
            return f"{kernels.name} attention differs from torch"
    return None


def _near(found: torch.Tensor, expected: torch.Tensor, allowed: float) -> bool:
    return bool((found - expected).norm() <= allowed * expected.norm())


def _random(
    kernels: Kernels, kind: int, generator: torch.Generator
) -> tuple[torch.Tensor, NativeLinear]:
    """Return a random matrix in float32, and its native product."""
    shape = (_OUTPUTS, _INPUTS)
    if kind in (FLOAT32, BFLOAT16):
        weight = torch.randn(shape, generator=generator)
        stored = weight if kind == FLOAT32 else weight.bfloat16()
        return stored.float(), NativeLinear(kernels, *kernels.pack(kind, 32, shape, [stored]), None)
    scale = (torch.rand(_OUTPUTS, _INPUTS // 32, generator=generator) + 0.5).half() / 64
    wide = scale.float()[..., None]
    if kind == INT8:
        q = torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
        weight, parts = q.view(_OUTPUTS, -1, 32) * wide, [q, scale]
    else:
        q = torch.randint(0, 256, (_OUTPUTS, _INPUTS // 2), generator=generator).to(torch.uint8)
        minimum = scale * -8
        pairs = q.view(_OUTPUTS, -1, 16)
        weight = torch.cat((pairs & 15, pairs >> 4), -1) * wide + minimum.float()[..., None]
        parts = [q, scale, minimum]
    linear = NativeLinear(kernels, *kernels.pack(kind, 32, shape, parts), None)
    return weight.view(shape), linear


def _attends(
    kernels: Kernels, dtype: torch.dtype, decode: bool, generator: torch.Generator
) -> bool:
    """Return whether attention over 5 blocks in another order is that of torch."""
    heads, kv_heads, width, size = 6, 2, 32, 80
    order = [3, 1, 4, 0, 2]
    memory = torch.randn(2, kv_heads, size, width, generator=generator).to(dtype)
    count, position = (1, 70) if decode else (12, 67)
    queries = torch.randn(count, heads, width, generator=generator)
    out = torch.empty_like(queries)
    model = shape_of((1, heads * width, heads, kv_heads, width, 1), size, KINDS[dtype], 1e-5)
    model.layer[0].keys, model.layer[0].values = (each.data_ptr() for each in memory)
    step, held = pieces_of(model, [(order, count, position, decode)])
    kernels.attend(Attending(ctypes.pointer(step), 0, queries.data_ptr(), out.data_ptr()))
    del held
    slots = torch.tensor([block * 16 + i for block in order for i in range(16)])
    keys, values = memory[:, :, slots[: position + count]].float().repeat_interleave(3, 1)
    mask = torch.arange(position + count)[None] <= torch.arange(position, position + count)[:, None]
    expected = F.scaled_dot_product_attention(queries.transpose(0, 1), keys, values, mask)
    allowed = 1e-4 if dtype == torch.float32 else _ALLOWED[BFLOAT16]
    return _near(out, expected.transpose(0, 1), allowed)
