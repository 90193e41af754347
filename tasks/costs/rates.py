"""Rates of devices and links, from which seconds are predicted."""

from dataclasses import dataclass
from typing import Literal

from ...state.membership.record import DeviceSpeed

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
    products. All are above 0, except those of `int8` and `int4`: 0 means as fast as `float32`.
    `factor` is measured divided by predicted seconds of past steps.
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
        rates = {
            "float32": self.float32, "bfloat16": self.bfloat16,
            "int8": self.int8, "int4": self.int4,
        }  # fmt: skip
        return rates[precision] or self.float32


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A link to a peer, as measured: the round trip in seconds, byte/s (0: unlimited), the share of
    packets that are lost, and the seconds in which both ends handle a message."""

    round_trip_s: float = 0.0
    rate: float = 0.0
    loss: float = 0.0
    message_s: float = 0.0


LOCAL = LinkRates()
"""The link of a node to itself."""


UNKNOWN = DeviceRates(bandwidth=8e9, float32=40e9, bfloat16=20e9, load=200e6)
"""Rates of a device that no probe has measured: those of a slow laptop."""


def device_rates(speed: DeviceSpeed, load_rate: float = 0.0) -> DeviceRates:
    """Return the rates of a device from a probe or from a member's claim. Unknown ones (0) are
    those of a slow laptop."""
    float32 = speed.float32 or UNKNOWN.float32
    return DeviceRates(
        speed.bandwidth or UNKNOWN.bandwidth,
        float32,
        speed.bfloat16 or float32 / 2,
        load=load_rate or UNKNOWN.load,
    )
