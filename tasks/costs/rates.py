"""Rates of devices and links, from which seconds are predicted."""

from dataclasses import dataclass, replace
from typing import Literal

from ...state.membership.record import DeviceSpeed

BATCH_FACTOR = 1.5
"""As `tasks/hardware` defines the useful batch."""
HALF_ROWS_MOST = 1024.0

Precision = Literal["float32", "bfloat16", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of a device's rates that steps reach, and their fixed times.

    With `half_rows`, a product of that many rows reaches half of `compute`: `compute * rows / (rows
    + half_rows)`.
    """

    compute: float = 1.0  # of the matrix rate
    memory: float = 1.0  # of the bandwidth
    attention: float = 0.3  # of the matrix rate, in attention
    half_rows: float = 0.0
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


PROCESSOR = Efficiency()
ACCELERATOR = Efficiency(half_rows=90.0, layer_s=30e-6)
"""Efficiencies of the kinds of devices, of rates that a probe has measured (docs/adr/0056)."""

LOCAL = LinkRates()
"""The link of a node to itself."""


UNKNOWN = DeviceRates(bandwidth=8e9, float32=40e9, bfloat16=20e9, load=200e6)
"""Rates of a device that no probe has measured: those of a slow laptop."""


def device_rates(speed: DeviceSpeed, load_rate: float = 0.0) -> DeviceRates:
    """Return the rates of a device from a probe or from a member's claim. Unknown ones (0) are
    those of a slow laptop.

    The useful batch `b` says where a product of float32 or bfloat16 becomes limited by operations:
    with `b` rows it takes BATCH_FACTOR times as long as with one. That gives the efficiency of
    products of few rows.
    """
    float32 = speed.float32 or UNKNOWN.float32
    # A CPU without instructions for bfloat16 computes such weights in float32.
    bfloat16 = max(speed.bfloat16, float32)
    bandwidth = speed.bandwidth or UNKNOWN.bandwidth
    half_rows = 0.0
    if speed.batch:
        size = 2 if speed.bfloat16 > speed.float32 else 4  # bytes of a weight, as the probe chooses
        balanced = max(bfloat16, float32) / bandwidth * size / 2  # rows with the time of one
        half_rows = min(BATCH_FACTOR * balanced - speed.batch, balanced - 1.0, HALF_ROWS_MOST)
    accelerated = not speed.name.startswith("cpu")
    base = ACCELERATOR if accelerated else PROCESSOR
    return DeviceRates(
        bandwidth,
        float32,
        bfloat16,
        load=load_rate or UNKNOWN.load,
        efficiency=replace(base, half_rows=max(0.0, half_rows)) if speed.batch else base,
    )
