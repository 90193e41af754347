"""Rates of devices and links, from which seconds are predicted."""

from dataclasses import dataclass, replace
from typing import Literal

from ...state.membership.record import DeviceSpeed

BATCH_FACTOR = 1.5
"""As `tasks/hardware` defines the useful batch."""
HALF_ROWS_MOST = 1024.0
RATE_LEAST, RATE_MOST = 1e4, 1e18  # byte/s and flop/s

Precision = Literal["float32", "bfloat16", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of a device's rates that steps reach, and their fixed times.

    With `half_rows`, a product of that many rows reaches half of `compute`: `compute * rows / (rows
    + half_rows)`. With `overlap` 1, the shorter of computing and reading takes no time of its own,
    and with 0 all of its time. Attention computes rows of prompts in groups of `tile`.
    """

    compute: float = 1.0  # of the matrix rate
    memory: float = 1.0  # of the bandwidth
    attention: float = 0.3  # of the matrix rate, in attention
    half_rows: float = 0.0
    overlap: float = 1.0
    tile: int = 1
    layer_s: float = 0.0  # seconds of a layer in a step, whatever its rows
    step_s: float = 0.0  # seconds of a step


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of a device, as its probe measured them, and what steps reach of them.

    `bandwidth` and `load` (of weights, from the disk) are in byte/s, the others in flop/s of matrix
    products. All are above 0, except those of `int8` and `int4`: 0 stands for the faster of the
    other two. `factor` is measured divided by predicted seconds of past steps.
    """

    bandwidth: float
    float32: float
    bfloat16: float
    int8: float = 0.0
    int4: float = 0.0
    load: float = 1e9
    efficiency: Efficiency = Efficiency()
    factor: float = 1.0

    def flops(self, precision: Precision) -> float:
        """Return the flop/s of matrix products in a precision."""
        match precision:
            case "float32":
                return self.float32
            case "bfloat16":
                return self.bfloat16
            case "int8":
                return self.int8 or max(self.float32, self.bfloat16)
            case "int4":
                return self.int4 or max(self.float32, self.bfloat16)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A link to a peer, as measured: the round trip in seconds, byte/s (0: unlimited), the share of
    packets that are lost, and the seconds in which both ends handle a message."""

    round_trip_s: float = 0.0
    rate: float = 0.0
    loss: float = 0.0
    message_s: float = 0.0


PROCESSOR = Efficiency(compute=1.2, memory=0.75, attention=0.95, overlap=0.0, tile=16)
ACCELERATOR = Efficiency(half_rows=90.0, layer_s=30e-6)
"""Efficiencies of the kinds of devices, as shares of what a probe measures (docs/adr/0056)."""

LOCAL = LinkRates()
"""The link of a node to itself."""


UNKNOWN = DeviceRates(8e9, 40e9, 40e9, load=200e6, efficiency=PROCESSOR)
"""Rates of a device that no probe has measured: those of a slow laptop."""


def _claimed(rate: float) -> float:
    """Return a claimed rate within what machines have, so that no prediction is 0 or infinite; 0
    stays 0."""
    return min(max(rate, RATE_LEAST), RATE_MOST) if rate > 0.0 else 0.0


def device_rates(speed: DeviceSpeed, load_rate: float = 0.0) -> DeviceRates:
    """Return the rates of a device from a probe or from a member's claim. Unknown ones (0) are
    those of a slow laptop.

    The useful batch is the largest power of two of rows with which a product takes at most
    BATCH_FACTOR times as long as with one. So twice as many rows take longer, which gives the least
    that products of few rows lose.
    """
    float32 = _claimed(speed.float32) or UNKNOWN.float32
    # A CPU without instructions for bfloat16 computes such weights in float32.
    bfloat16 = max(_claimed(speed.bfloat16), float32)
    bandwidth = _claimed(speed.bandwidth) or UNKNOWN.bandwidth
    base = PROCESSOR if speed.name.startswith("cpu") else ACCELERATOR
    if speed.batch and base.overlap:
        size = 2 if speed.bfloat16 > speed.float32 else 4  # bytes of a weight, as the probe chooses
        balanced = bfloat16 / bandwidth * size / 2  # rows whose operations take as long as reading
        half_rows = min(BATCH_FACTOR * balanced - 2 * speed.batch, balanced - 1.0, HALF_ROWS_MOST)
        base = replace(base, half_rows=max(0.0, half_rows))
    load = _claimed(load_rate) or UNKNOWN.load
    return DeviceRates(bandwidth, float32, bfloat16, load=load, efficiency=base)
