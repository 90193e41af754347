"""Predicted seconds of one step, of one message, and of loading weights."""

from collections.abc import Sequence

from .rates import DeviceRates, Efficiency, LinkRates
from .work import EqualRows, ShardWork

PACKET = 1200
"""Bytes of a packet, at least, that a message is sent in."""


def step_seconds(
    device: DeviceRates, work: ShardWork, rows: Sequence[EqualRows], heads: int = 0
) -> float:
    """Return the seconds of a step that computes `rows`, and logits for `heads` of them.

    A roofline: matrix products take the longer of their operations and of reading the weights, and
    attention the longer of its pairs and of reading keys and values; and where a device does not
    overlap the two, a part of the shorter.
    """
    total = sum(each.total for each in rows)
    if total <= 0:
        return 0.0
    seconds = product_seconds(device, work, total, heads) + attention_seconds(device, work, rows)
    return device.factor * (seconds + fixed_seconds(device, work))


def product_seconds(device: DeviceRates, work: ShardWork, rows: int, heads: int) -> float:
    """Return the seconds of the matrix products of a step, before the device's factor."""
    if rows <= 0:
        return 0.0
    eff = device.efficiency
    reached = device.flops(work.precision) * eff.compute * rows / (rows + eff.half_rows)
    read = device.bandwidth * eff.memory
    return _overlapped(eff, work.flops(rows, heads) / reached, work.bytes(rows, heads) / read)


def attention_seconds(device: DeviceRates, work: ShardWork, rows: Sequence[EqualRows]) -> float:
    """Return the seconds of the attention of a step, before the device's factor."""
    eff = device.efficiency
    if eff.tile > 1:
        rows = [each.tiled(eff.tile) for each in rows]
    pairs = work.pair_flops(rows) / (device.flops(work.precision) * eff.attention)
    return _overlapped(eff, pairs, work.kv_bytes(rows) / (device.bandwidth * eff.memory))


def _overlapped(eff: Efficiency, one: float, other: float) -> float:
    """Return the seconds of computing and reading together."""
    return max(one, other) + (1.0 - eff.overlap) * min(one, other)


def fixed_seconds(device: DeviceRates, work: ShardWork) -> float:
    """Return the seconds of a step whatever its rows are, before the device's factor."""
    return device.efficiency.step_s + device.efficiency.layer_s * work.layers


def transfer_seconds(link: LinkRates, size: int) -> float:
    """Return the seconds until the peer has a message of `size` bytes: half a round trip, the
    sending, the handling, and one more round trip if a packet is lost."""
    sending = sending_seconds(link, size)
    lost = 1.0 - (1.0 - link.loss) ** -(-size // PACKET) if link.loss else 0.0
    return link.message_s + link.round_trip_s * (0.5 + lost) + sending


def sending_seconds(link: LinkRates, size: int) -> float:
    """Return the seconds for which `size` bytes occupy a link."""
    return size / (link.rate * (1.0 - link.loss)) if link.rate else 0.0
