"""Computing of a shard on a graphics card: own kernels, and one graph for each step of texts.

Rows that continue texts are computed by a captured graph: the card then starts the hundreds of
small kernels of a step by itself. A graph is made for a number of rows and of positions, both
rounded up to powers of two, when it is first needed. Rows of prompts are computed without a graph.
Rows with an adapter are computed by the code of torch (`torchcompute.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from ...clock import clock
from ...families import Architecture
from ...interface import EXACTNESS_BYTES, LoadShard, Parts
from ...kv.blocks import BLOCK, BlockPool, BlockTable
from ...scheduling.costs import StepCosts
from ...shard import Piece, Stop
from ..device import ComputeDevice
from ..layers import AttentionPart, DensePart
from ..norms import Norm
from ..products import Linear
from ..torchcompute import TorchCompute
from ..weights import TORCH_DTYPES
from . import launch
from .launch import HeadLayout, Product
from .steprows import PromptRows, Rows, Seats, chunks_for, prompt_rows

_ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of the graphs. More rows of texts are computed in several rounds."""
_STEP_ROWS: Final = 4096  # rows of one step, which need about 2 GB in a model of 8 B weights
_Multiply = Callable[[torch.Tensor, Linear], Product]
_Compute = Callable[[Sequence[Piece]], Sequence[torch.Tensor]]
_Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def fits(arch: Architecture, parts: Parts) -> bool:
    """Return whether the kernels compute these layers of a model: those of Llama, Qwen2, Qwen3 and
    Mistral."""
    other_norms = arch.wide_norms or arch.names.mixed_norm or arch.names.output_norm
    other_scores = arch.attention_scale or arch.attention_cap or arch.logit_cap or arch.sinks
    return (
        not (other_norms or other_scores or arch.gated_attention or arch.recurrent)
        and arch.activation == "silu"
        and arch.embedding_scale == 1.0
        and arch.rotated in (0, arch.head_dim)
        and not any(kind.experts for kind in arch.kinds[parts.start : parts.stop])
    )


class CardCompute(TorchCompute):
    """Implementation of the interface `Compute` (`shard.py`) on a graphics card."""

    peaks = staticmethod(launch.peaks)
    calibration_rows = 1024

    def __init__(self, arch: Architecture, shard: LoadShard, device: ComputeDevice) -> None:
        super().__init__(arch, shard, device)
        self._graphs: dict[tuple[int, int, bool], _Graph] = {}
        self._tile_rows = launch.tile_rows(self.dtype == "float32")
        self._prompt_products = launch.PromptProducts(_STEP_ROWS)

    @property
    def exactness(self) -> str:
        card = (
            torch.cuda.get_device_name(self.device.torch) if torch.cuda.is_available() else "device"
        )
        version = torch.__version__.split("+")[0]
        precision = "-".join((self.dtype, self.arch.layouts.precision)).rstrip("-")
        name = f"{card[:20]} {launch.compiled()} {precision} torch-{version[:7]}"
        return name[:EXACTNESS_BYTES]

    def costs(self) -> StepCosts:
        return replace(super().costs(), most_rows=_STEP_ROWS)

    def attended_seconds(self) -> float:
        rows = min(self.calibration_rows, self._memory.keys.shape[2] // BLOCK * BLOCK)
        table = BlockTable(BlockPool(rows // BLOCK), rows)
        table.prepare(0, rows)
        where = prompt_rows(
            [(table, 0, rows)], launch.tile_rows(self.dtype == "float32"), self.device
        )
        memory = self._memory.keys[:1]  # what is in there does not matter
        if not rows or not len(memory):
            return 0.0
        mine = memory[0].index_select(1, where.seen)
        queries = torch.zeros(
            rows, self.arch.heads, self.arch.head_dim, dtype=mine.dtype, device=mine.device
        )
        times: list[float] = []
        for _ in range(3):  # the first one compiles
            began = clock(self.device.name)
            launch.attend_prompts(queries, mine, mine, where.tiles, 0)
            times.append(clock(self.device.name) - began)
        return 2 * min(times) * len(self.layers) / float(rows**2)

    def alone_seconds(self) -> float:
        return 0.0  # not measured yet: texts attend in other kernels

    def allocate(self, blocks: int, states: int) -> None:
        self._graphs.clear()  # they contain the addresses of the old memory
        super().allocate(blocks, states)

    @staticmethod
    def hidden_rows(pieces: Sequence[Piece]) -> torch.Tensor:
        """Return the hidden states that pieces take as their input."""
        rows = [each.source[each.first : each.first + each.count] for each in pieces]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def forward(self, pieces: Sequence[Piece], stop: Stop | None = None) -> Sequence[torch.Tensor]:
        found: list[torch.Tensor | None] = [None] * len(pieces)
        kinds: dict[_Compute, list[int]] = {}
        for index, piece in enumerate(pieces):
            compute: _Compute = self._texts if piece.decode else self._prompts
            if piece.adapter is not None:
                compute = super().forward
            kinds.setdefault(compute, []).append(index)
        for compute, chosen in kinds.items():
            rows = compute([pieces[index] for index in chosen])
            for index, each in zip(chosen, rows, strict=True):
                found[index] = each
        return [each for each in found if each is not None]

    def _texts(self, pieces: Sequence[Piece]) -> Sequence[torch.Tensor]:
        """Compute rows that continue texts, each a piece of one row."""
        most = _ROWS[-1]
        rounds = [self._graph(pieces[at : at + most], at) for at in range(0, len(pieces), most)]
        return [row for rows in rounds for row in rows.split(1)]

    def _graph(self, pieces: Sequence[Piece], at: int) -> torch.Tensor:
        """Compute rows, number `at` of the step and following, by the graph of their number and
        their longest session."""
        rows = next(size for size in _ROWS if size >= len(pieces))
        chunks = chunks_for(max(piece.position for piece in pieces) + 1)
        tokens = isinstance(pieces[0].source, np.ndarray)
        graph = self._graphs.get((rows, chunks, tokens))
        if graph is None:
            graph = self._graphs[rows, chunks, tokens] = _Graph(self, rows, chunks, tokens)
        return graph.run(pieces, again=at > 0)

    def _prompts(self, pieces: Sequence[Piece]) -> Sequence[torch.Tensor]:
        """Compute rows of prompts."""
        places = [(each.table, each.position, each.count) for each in pieces]
        where = prompt_rows(places, self._tile_rows, self.device)
        x = self._inputs(pieces).contiguous()
        if x.data_ptr() == getattr(pieces[0].source, "data_ptr", int)():
            x = x.clone()  # the layers change the rows in place
        self.layers_of_prompts(x, where)
        rows: Sequence[torch.Tensor] = x.split([each.count for each in pieces])
        return rows

    def layers_of_prompts(self, x: torch.Tensor, where: PromptRows) -> None:
        """Change rows of prompts (T x hidden) by all layers."""

        def attend(
            queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
        ) -> torch.Tensor:
            mine = keys.index_select(1, where.seen), values.index_select(1, where.seen)
            return launch.attend_prompts(queries, *mine, where.tiles, window)

        self._layers(x, where, self._prompt_products, attend)

    def layers_of_texts(self, x: torch.Tensor, rows: Rows, chunks: int) -> None:
        """Change rows that continue texts (T x hidden) by all layers."""

        def attend(
            queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
        ) -> torch.Tensor:
            tables, lengths = rows.tables, rows.lengths
            return launch.attend_rows(queries, keys, values, tables, lengths, chunks, window)

        self._layers(x, rows, launch.text_rows, attend)

    def _layers(
        self, x: torch.Tensor, rows: Rows | PromptRows, multiply: _Multiply, attend: _Attend
    ) -> None:
        change: Product | None = None
        for index, layer in enumerate(self.layers):
            attention, mlp, eps = layer.mixer, layer.mlp, self.arch.eps
            assert isinstance(attention, AttentionPart) and isinstance(mlp, DensePart)
            normed = launch.add_and_norm(x, change, layer.input_norm.weight, eps)
            keys, values = self._memory.keys[index], self._memory.values[index]
            product = multiply(normed, attention.qkv)
            heads = self._heads(attention)
            queries = heads.turn(product, rows.positions, rows.slots, keys, values)
            attended = attend(queries, keys, values, attention.window)
            change = multiply(attended, attention.output)
            normed = launch.add_and_norm(x, change, layer.mlp_norm.weight, eps)
            product = multiply(normed, mlp.gate_up)
            inner = launch.gated(product, self.arch.intermediate, x.dtype)
            change = multiply(inner, mlp.down)
        if change is not None:
            launch.add_and_norm(x, change, None, self.arch.eps)

    def _heads(self, part: AttentionPart) -> HeadLayout:
        arch = self.arch
        # As many positions as the memory has: a config may claim a context of millions.
        cos, sin = self.rotaries[part.turn].first(self._memory.keys.shape[2])
        norms = _weight(part.query_norm), _weight(part.key_norm)
        return HeadLayout(arch.heads, arch.kv_heads, arch.head_dim, *norms, cos, sin, arch.eps)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        assert self._head is not None and self._norm is not None
        normed = launch.add_and_norm(x.contiguous(), None, self._norm.weight, self.arch.eps)
        product = launch.text_rows(normed, self._head)
        total = product.sums[0]
        for part in product.sums[1:]:
            total = total + part
        return total.to(x.dtype).float()


class _Graph:
    """A captured step of `rows` rows, each in a session of at most `chunks` chunks."""

    def __init__(self, card: CardCompute, rows: int, chunks: int, tokens: bool) -> None:
        """`tokens` says whether the rows are token ids or hidden states."""
        self._card, self._tokens = card, tokens
        self._seats = Seats(rows, chunks, card.device)
        self._seats.take((), ())
        width = 0 if tokens else card.arch.hidden
        dtype = TORCH_DTYPES[card.dtype]
        self._hidden = torch.zeros(rows, width, dtype=dtype, device=card.device.torch)

        def step() -> torch.Tensor:
            x = card.embed(self._seats.tokens) if tokens else self._hidden.clone()
            card.layers_of_texts(x, self._seats.rows, chunks)
            return x

        self._replay = _captured(step, card.device.torch)

    def run(self, pieces: Sequence[Piece], again: bool) -> torch.Tensor:
        """Return the output rows of pieces of one row each. They are the caller's.

        `again` says that the graph has run since the card was last waited for.
        """
        if again:
            self._card.device.synchronize()
        tokens = [int(each.source[each.first]) for each in pieces] if self._tokens else ()
        self._seats.take([(each.table, each.position) for each in pieces], tokens)
        if not self._tokens:
            self._hidden[: len(pieces)] = self._card.hidden_rows(pieces)
        return self._replay()[: len(pieces)].clone()


def _captured(step: Callable[[], torch.Tensor], where: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function that does the same as `step` on the same tensors, as a graph on CUDA."""
    if where.type != "cuda":
        return step
    side = torch.cuda.Stream(where)
    side.wait_stream(torch.cuda.current_stream(where))
    with torch.cuda.stream(side):
        step()  # compiles the kernels
    torch.cuda.current_stream(where).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def _weight(norm: Norm | None) -> torch.Tensor | None:
    return None if norm is None else norm.weight
