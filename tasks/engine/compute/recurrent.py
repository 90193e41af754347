"""Recurrent layers: the gated delta rule (Yang 2024), with a short convolution before it.

Positions are computed one after the other, in float32 and with products of fixed sizes. A row is
therefore the same however its text is divided into steps, and whatever shares the step. The state
of a session is a matrix for each head, and the last inputs of the convolution.
"""

from collections.abc import Sequence

import torch

from ..errors import EngineError
from ..families import Architecture, Recurrent
from ..interface import DType, Parts
from ..kv.states import StateUse
from .device import CPU, ComputeDevice, lazy_zeros
from .norms import Norm
from .pointwise import sigmoid, silu, softplus
from .step import LayerWeights, StepContext
from .weights import TORCH_DTYPES


class StateMemory:
    """States of all sessions of a shard, in slots.

    `inputs` has the shape (recurrent layers, slots, kernel - 1, channels), and `matrices`
    (recurrent layers, slots, value_heads, key_dim, value_dim) in float32.
    """

    def __init__(
        self,
        arch: Architecture,
        parts: Parts,
        dtype: DType,
        slots: int,
        device: ComputeDevice = CPU,
    ) -> None:
        """Reserve the memory. Raises EngineError `no-memory` if that is refused."""
        found = [arch.kinds[layer].recurrent for layer in range(parts.start, parts.stop)]
        layers = [each for each in found if each is not None]
        first = layers[0] if layers else Recurrent(1, 1, 2, 2, 2)
        shape = len(layers), slots, first.kernel - 1, first.channels
        square = len(layers), slots, first.value_heads, first.key_dim, first.value_dim
        try:
            self.inputs = lazy_zeros(shape, TORCH_DTYPES[dtype], device)
            self.matrices = lazy_zeros(square, torch.float32, device)
        except (MemoryError, torch.OutOfMemoryError):
            raise EngineError(
                "no-memory", f"the system refused memory for {slots} recurrent states"
            ) from None

    @property
    def lacks(self) -> bool:
        """Whether there are recurrent layers, but no room for a state."""
        return len(self.inputs) > 0 and not self.inputs.shape[1]

    def prepare(self, uses: Sequence[StateUse]) -> None:
        """Restore and save states before a step."""
        for use in uses:
            for memory in (self.inputs, self.matrices):
                if use.fresh:
                    memory[:, use.slot] = 0
                elif use.restore is not None:
                    memory[:, use.slot] = memory[:, use.restore]
                if use.save is not None:
                    memory[:, use.save] = memory[:, use.slot]


class RecurrentPart:
    """Gated delta rule of one layer: from normed rows to what is added to the residual stream."""

    def __init__(self, weights: LayerWeights, sizes: Recurrent, place: int) -> None:
        """Read the weights. `place` is the number of recurrent layers of the shard before it."""
        names = sizes.names
        self.inputs = weights.linear(names.inputs)
        self.gates = weights.linear(names.gates)
        self.output = weights.linear(names.output)
        self.norm = Norm(weights.read(names.norm), weights.arch.eps)
        # channels x 1 x kernel -> kernel x channels
        self._kernel = weights.read(names.convolution)[:, 0].float().T.contiguous()
        self._decay = -weights.read_plain(names.decay).float().exp()
        self._bias = weights.read_plain(names.bias)
        self._sizes = sizes
        self._place = place

    def __call__(self, normed: torch.Tensor, index: int, step: StepContext) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        mixed, gate = self._split(self.inputs(normed))
        strength, decay = self._gates(normed)
        sizes, memory = self._sizes, step.states
        shape = len(normed), sizes.value_heads, sizes.value_dim
        out = torch.zeros(shape, dtype=normed.dtype, device=normed.device)
        for first, end, slot in step.runs:
            rows = self._convolve(memory.inputs[self._place, slot], mixed[first:end])
            matrix = memory.matrices[self._place, slot]
            found = self._advance(matrix, rows, strength[first:end], decay[first:end])
            out[first:end] = found.to(out.dtype)
        gated = self.norm(out) * silu(gate.float())
        return self.output(gated.to(normed.dtype).flatten(1))

    def _split(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rows x channels of queries, keys and values; rows x value_heads x value_dim).

        They are stored by key head: its query, its key, its values and their gates.
        """
        sizes = self._sizes
        values = sizes.value_heads // sizes.key_heads * sizes.value_dim
        each = rows.view(len(rows), sizes.key_heads, -1)
        parts = each.split((sizes.key_dim, sizes.key_dim, values, values), -1)
        mixed = torch.cat([part.flatten(1) for part in parts[:3]], -1)
        return mixed, parts[3].reshape(len(rows), sizes.value_heads, sizes.value_dim)

    def _gates(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how strongly each row writes, and how much of the state it keeps (rows x
        value_heads, float32)."""
        sizes = self._sizes
        each = self.gates(normed).view(len(normed), sizes.key_heads, 2, -1)
        write, keep = each[:, :, 0].flatten(1), each[:, :, 1].flatten(1)
        decay = self._decay * softplus(keep.float() + self._bias)
        return sigmoid(write).float(), decay.exp()

    def _convolve(self, last: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the causal convolution of rows (T x channels), and store their last inputs."""
        every = torch.cat((last, rows))
        last.copy_(every[len(rows) :])
        total = every[: len(rows)].float() * self._kernel[0]
        for offset in range(1, len(self._kernel)):
            total = total + every[offset : offset + len(rows)].float() * self._kernel[offset]
        return silu(total.to(rows.dtype))

    def _advance(
        self, matrix: torch.Tensor, rows: torch.Tensor, strength: torch.Tensor, decay: torch.Tensor
    ) -> torch.Tensor:
        """Advance a state in place by T rows. Return T x value_heads x value_dim in float32."""
        sizes, count = self._sizes, len(rows)
        width = sizes.key_heads * sizes.key_dim
        queries, keys, values = rows.float().split((width, width, rows.shape[1] - 2 * width), -1)
        group = sizes.value_heads // sizes.key_heads
        heads = (count, sizes.key_heads, sizes.key_dim)
        queries = _unit(queries.view(heads)) * sizes.key_dim**-0.5
        queries = queries.repeat_interleave(group, 1)[:, :, None]
        keys = _unit(keys.view(heads)).repeat_interleave(group, 1)[:, :, None]
        values = values.view(count, sizes.value_heads, 1, sizes.value_dim)
        out = torch.empty_like(values)
        for at in range(count):
            matrix.mul_(decay[at, :, None, None])
            missing = (values[at] - torch.bmm(keys[at], matrix)) * strength[at, :, None, None]
            matrix.baddbmm_(keys[at].transpose(1, 2), missing)
            out[at] = torch.bmm(queries[at], matrix)
        return out[:, :, 0]


def _unit(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of length 1, almost: a small number avoids a division by zero."""
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6)
