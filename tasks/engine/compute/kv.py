"""Keys and values of all sessions of one shard, in torch, in the memory of their device.

The memory is one tensor for keys and one for values, with a place (slot) for each position of each
block. The operating system commits pages when positions are first written.
"""

from collections.abc import Sequence

import torch

from ..errors import EngineError
from ..families import Architecture
from ..interface import DType, KvForm, Parts
from ..kv.blocks import BLOCK, BlockCopy, BlockTable
from ..shard import Slots
from .device import CPU, ComputeDevice, lazy_zeros
from .weights import TORCH_DTYPES


class KvMemory:
    """KV of `blocks` blocks. `keys` and `values` have the shape (layers with attention, kv_heads,
    slots, head_dim)."""

    def __init__(
        self,
        arch: Architecture,
        parts: Parts,
        dtype: DType,
        blocks: int,
        device: ComputeDevice = CPU,
    ) -> None:
        """Reserve the memory on the device. Raises EngineError `no-memory` if that is refused."""
        kinds = arch.kinds[parts.start : parts.stop]
        layers = sum(kind.recurrent is None for kind in kinds)
        shape = (layers, arch.kv_heads, blocks * BLOCK, arch.head_dim)
        self._device = device
        try:
            kind = TORCH_DTYPES[dtype]
            self.keys, self.values = (lazy_zeros(shape, kind, device) for _ in range(2))
        except (MemoryError, torch.OutOfMemoryError):
            raise EngineError(
                "no-memory", f"the system refused memory for {blocks * BLOCK} positions of KV"
            ) from None

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the content of blocks."""
        for source, target in copies:
            for memory in (self.keys, self.values):
                old = memory[:, :, source * BLOCK : (source + 1) * BLOCK]
                memory[:, :, target * BLOCK : (target + 1) * BLOCK] = old

    def export(self, table: BlockTable) -> memoryview:
        """Return the KV of a session: for each layer the keys, and then the values."""
        pairs = [
            torch.stack((self.keys[:, :, first:end], self.values[:, :, first:end]), 1)
            for first, end in table.spans(0, table.length)
        ]
        if not pairs:
            return memoryview(b"")
        return raw_bytes(self._device.download(torch.cat(pairs, 3)))

    def imported(self, length: int, data: memoryview) -> torch.Tensor:
        """Return exported KV of `length` positions: layers x 2 x kv_heads x length x head_dim.

        Raises EngineError `bad-state` if a value is not finite.
        """
        layers, heads, _, width = self.keys.shape
        shape = (layers, 2, heads, length, width)
        if not length or not layers:
            return self.keys.new_empty(shape)
        values = torch.frombuffer(bytearray(data), dtype=self.keys.dtype).view(shape)
        if not bool(torch.isfinite(values).all()):
            raise EngineError("bad-state", "the KV copy has values that are not finite")
        return self._device.upload(values)

    def install(self, table: BlockTable, length: int, values: torch.Tensor) -> None:
        """Write imported KV into the first `length` positions of a session."""
        at = 0
        for first, end in table.spans(0, length):
            size = end - first
            self.keys[:, :, first:end] = values[:, 0, :, at : at + size]
            self.values[:, :, first:end] = values[:, 1, :, at : at + size]
            at += size

    def read(self, slots: Slots, layers: range, form: KvForm) -> memoryview:
        """Return the KV in some slots of some layers: for each layer the keys, and then the
        values."""
        values = self._device.download(self.kept(slots, layers))
        if form == "exact":
            return raw_bytes(values.contiguous())
        return memoryview(b"".join(map(_quantised, values.flatten(0, 1))))

    def parsed(self, count: int, layers: range, form: KvForm, data: memoryview) -> torch.Tensor:
        """Return KV of `count` positions that `read` returned: layers x 2 x kv_heads x count x
        head_dim.

        Raises EngineError `bad-state` if a value is not finite.
        """
        _, heads, _, width = self.keys.shape
        shape = (len(layers), 2, heads, count, width)
        if form == "exact":
            values = torch.frombuffer(bytearray(data), dtype=self.keys.dtype).view(shape)
        else:
            values = _widened(data, shape).to(self.keys.dtype)
        if not bool(torch.isfinite(values).all()):
            raise EngineError("bad-state", "the KV has values that are not finite")
        return self._device.upload(values)

    def write(self, slots: Slots, layers: range, values: torch.Tensor) -> None:
        """Write KV that `parsed` returned into some slots of some layers."""
        first, last, at = layers.start, layers.stop, 0
        for begin, end in slots:
            size = end - begin
            self.keys[first:last, :, begin:end] = values[:, 0, :, at : at + size]
            self.values[first:last, :, begin:end] = values[:, 1, :, at : at + size]
            at += size

    def kept(self, slots: Slots, layers: range | None = None) -> torch.Tensor:
        """Return a copy of the KV in some slots of some layers (None: all), in the shape of
        `parsed`."""
        layers = range(len(self.keys)) if layers is None else layers
        first, last = layers.start, layers.stop
        pairs = [
            torch.stack(
                (self.keys[first:last, :, begin:end], self.values[first:last, :, begin:end]), 1
            )
            for begin, end in slots
        ]
        return pairs[0] if len(pairs) == 1 else torch.cat(pairs, 3)

    def copied(self, slots: Slots) -> torch.Tensor:
        """Return a copy in host memory of the KV in some slots."""
        return self._device.download(self.kept(slots))

    def restore(self, slots: Slots, values: torch.Tensor) -> None:
        """Write KV that `copied` returned into as many slots."""
        self.write(slots, range(len(self.keys)), self._device.upload(values))

    def distance(self, slots: Slots, values: torch.Tensor) -> float:
        """Return the largest relative distance of a layer's keys or values in some slots from
        `values`."""
        ours, theirs = self.kept(slots).float(), values.float()
        if not ours.numel():
            return 0.0
        apart = (ours - theirs).flatten(2).norm(dim=2)
        return float((apart / theirs.flatten(2).norm(dim=2).clamp_min(1e-12)).max())


def _quantised(values: torch.Tensor) -> bytes:
    """Return keys or values (kv_heads x positions x head_dim) as int8, followed by their scales."""
    wide = values.float()
    scales = (wide.abs().amax(-1, keepdim=True) / 127).half()
    codes = (wide / scales.float().clamp_min(2**-24)).round_().clamp_(-127, 127).to(torch.int8)
    return b"".join((raw_bytes(codes), raw_bytes(scales)))


def _widened(data: memoryview, shape: tuple[int, int, int, int, int]) -> torch.Tensor:
    """Return the values in float32 of KV in int8 for layers x 2 x kv_heads x positions x
    head_dim."""
    layers, pair, heads, count, width = shape
    raw = torch.frombuffer(bytearray(data), dtype=torch.int8).view(layers * pair, -1)
    codes = raw[:, : heads * count * width].view(-1, heads, count, width)
    scales = raw[:, heads * count * width :].contiguous().view(torch.half)
    return (codes.float() * scales.float().view(-1, heads, count, 1)).view(shape)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return a view of the memory of a contiguous tensor as bytes."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
