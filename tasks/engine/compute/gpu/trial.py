"""Trial of the kernels on this machine, before a worker uses them.

Triton compiles the kernels when they are first called, and needs a compiler of C for that. Where
something is missing, torch computes.
"""

import subprocess
from functools import cache

import torch
from triton.errors import TritonError

from ..device import ComputeDevice
from ..products import Linear, PlainLinear, Quantised, QuantisedLinear
from . import launch

_ROWS, _OUTPUTS, _INPUTS = 3, 96, 256


@cache
def fault(device: ComputeDevice) -> str:
    """Return why the kernels cannot be used on a device, or an empty text if they can.

    Products with one matrix of each layout are compared with those of torch.
    """
    noise = torch.Generator(device.torch).manual_seed(0)
    shape = _ROWS, _INPUTS
    x = torch.randn(shape, generator=noise, device=device.torch, dtype=torch.bfloat16)
    for name, linear in _matrices(device.torch).items():
        expected = linear(x).float()
        try:
            sums = launch.text_rows(x, linear).sums
        except (RuntimeError, OSError, TritonError, subprocess.SubprocessError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            return f"the kernel for {name} weights: {reason or type(error).__name__}"
        if not torch.allclose(
            sums.sum(0).float(), expected, rtol=0.02, atol=0.02 * _largest(expected)
        ):
            return f"the kernel for {name} weights computes something else than torch"
    return ""


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max())


def _matrices(where: torch.device) -> dict[str, Linear]:
    """Return a product with a matrix of each layout."""
    noise = torch.Generator(where).manual_seed(1)
    plain = torch.randn(_OUTPUTS, _INPUTS, generator=noise, device=where, dtype=torch.bfloat16)
    whole = torch.randint(-127, 128, plain.shape, generator=noise, device=where)
    halves = torch.randint(0, 256, (_OUTPUTS, _INPUTS // 2), generator=noise, device=where)
    scale = torch.rand(_OUTPUTS, _INPUTS // 32, generator=noise, device=where).half()
    eight = Quantised("int8", whole.to(torch.int8), scale)
    four = Quantised("int4", halves.to(torch.uint8), scale, -8 * scale)
    return {
        "plain": PlainLinear(plain, None),
        "int8": QuantisedLinear(eight, None),
        "int4": QuantisedLinear(four, None),
    }
