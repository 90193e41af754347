"""Predicted seconds of one step, of one message, and of loading weights."""

from collections.abc import Sequence

from .rates import DeviceRates, LinkRates
from .work import Rows, ShardWork

PACKET = 1200
"""Bytes of a packet, at least, that a message is sent in."""


def step_seconds(
    device: DeviceRates, work: ShardWork, rows: Sequence[Rows], heads: int = 0
) -> float:
    """Return the seconds of a step that computes `rows`, and logits for `heads` of them.

    A roofline: matrix products take the longer of their operations and of reading the weights, and
    attention the longer of its pairs and of reading keys and values.
    """
    eff, flops = device.efficiency, device.flops(work.precision)
    total = sum(each.total for each in rows)
    if not total:
        return 0.0
    reached = flops * eff.compute * total / (total + eff.half_rows)
    read = device.bandwidth * eff.memory
    products = max(work.flops(rows, heads) / reached, work.bytes(rows, heads) / read)
    pairs = work.pair_flops(rows) / (flops * eff.attention)
    attention = max(pairs, work.kv_bytes(rows) / read)
    fixed = eff.step_s + eff.layer_s * work.layers
    return device.factor * (products + attention + fixed)


def transfer_seconds(link: LinkRates, size: int) -> float:
    """Return the seconds until the peer has a message of `size` bytes: half a round trip, the
    sending, the handling, and one more round trip if a packet is lost."""
    sending = size / (link.rate * (1.0 - link.loss)) if link.rate else 0.0
    lost = 1.0 - (1.0 - link.loss) ** -(-size // PACKET) if link.loss else 0.0
    return link.message_s + link.round_trip_s * (0.5 + lost) + sending


def load_seconds(device: DeviceRates, size: int) -> float:
    """Return the seconds in which weights of `size` bytes are read from the disk."""
    return size / device.load
