"""Calls of the kernels, with the sizes of their tiles.

Tensors are contiguous and on the device. T is the number of rows, of which a step has at least one.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
import triton
from torch.nn import functional as F

from ...kv.blocks import BLOCK
from ..devicesampling import Peaks
from ..products import Linear, PlainLinear, QuantisedLinear
from . import kernels

# The card may start a kernel of a graph before its predecessor has ended. Cards can since Hopper.
# Beside cuBLAS, this was slower.
_EARLY: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
_LOG2_E: Final = 1.4426950408889634
CHUNK: Final = 128
"""Positions to which a row that continues a text attends in one program."""
_TILE_ROWS: Final = 128  # rows of a prompt that attend in one program …
_TILE_KEYS: Final = 64  # … to this many keys at a time
_OUTPUTS: Final = 64  # outputs of a program in products of few rows
_PROGRAMS: Final = 192  # programs that keep a card busy, at least
PADDED_ROWS: Final = 512  # rows of prompts are padded to a multiple of this many, for cuBLAS
_FEW: Final = (16, 32, 64, 128)  # rows of a tile in products of few rows


class Product(NamedTuple):
    """Result of a product before its rounding: `parts` x T x N, to be added in their order.

    `early` says that the kernels which use it may start before it is complete, and wait for it.
    """

    sums: torch.Tensor
    parts: int
    early: bool = False


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << (size - 1).bit_length()


def text_rows(x: torch.Tensor, linear: Linear) -> Product:
    """Multiply rows that continue a text with a matrix. A row is the same for any T.

    The inputs are divided so that all of the card's processors work. A matrix in a form for which
    there is no kernel is multiplied by torch.
    """
    if isinstance(linear, QuantisedLinear):
        return _quantised(x, linear)
    if not isinstance(linear, PlainLinear):
        return Product(linear(x), 1)
    return few_rows(x, linear, parts_of(*linear.weight.shape), early=_EARLY)


def _quantised(x: torch.Tensor, linear: QuantisedLinear) -> Product:
    rows, weight = len(x), linear.weight
    outputs, inputs = weight.outputs, weight.inputs
    parts = parts_of(outputs, inputs)
    out = x.new_empty((parts, rows, outputs), dtype=torch.float32)
    tile, exact = _tile(rows), x.dtype == torch.float32
    kernels.few_rows_quantised[(-(-outputs // _OUTPUTS), parts, -(-rows // tile))](
        x, weight.q, weight.scale, _or(weight.minimum, weight.scale), _or(linear.bias, x), out,
        rows, outputs, inputs, _part(inputs, parts), weight.group,
        NIBBLES=weight.minimum is not None, ROWS=tile, OUTPUTS=_OUTPUTS, INPUTS=128,
        BIASED=linear.bias is not None, EXACT=exact,
        EARLY=_EARLY, launch_pdl=_EARLY, num_warps=4, num_stages=1 if exact else 3,
    )  # fmt: skip
    return Product(out, parts, _EARLY)


def dequantised(linear: QuantisedLinear, dtype: torch.dtype) -> PlainLinear:
    """Return the product with the whole matrix in the dtype of the rows."""
    weight = linear.weight
    out = torch.empty(weight.outputs, weight.inputs, dtype=dtype, device=weight.q.device)
    kernels.dequantise[(weight.outputs, -(-weight.inputs // 1024))](
        weight.q, weight.scale, _or(weight.minimum, weight.scale), out, weight.inputs, weight.group,
        NIBBLES=weight.minimum is not None, BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return PlainLinear(out, linear.bias)


def _tile(rows: int) -> int:
    return next((size for size in _FEW if size >= rows), _FEW[-1])


def _part(inputs: int, parts: int) -> int:
    """Return the number of inputs of a part, a multiple of 128."""
    return -(-inputs // (parts * 128)) * 128


def few_rows(x: torch.Tensor, linear: PlainLinear, parts: int, *, early: bool = False) -> Product:
    """Multiply rows with a matrix, whose inputs are divided into parts. A row is the same for any
    T."""
    rows, inputs = x.shape
    outputs, exact = len(linear.weight), x.dtype == torch.float32
    tile = _tile(rows)
    out = x.new_empty((parts, rows, outputs), dtype=torch.float32)
    # Sums have the same order for both steps: the card multiplies 16 inputs at once.
    step, stages = (32, 2) if exact else (128, 4) if rows <= 32 else (64, 6)
    grid = -(-outputs // _OUTPUTS), parts, -(-rows // tile)
    kernels.few_rows[grid](
        x, linear.weight, _or(linear.bias, x), out, rows, outputs, inputs, _part(inputs, parts),
        ROWS=tile, OUTPUTS=_OUTPUTS, INPUTS=step, BIASED=linear.bias is not None, EXACT=exact,
        EARLY=early, launch_pdl=early, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return Product(out, parts, early)


def parts_of(outputs: int, inputs: int) -> int:
    """Return into how many parts the inputs of a matrix are divided."""
    parts = 1
    while outputs // _OUTPUTS * parts < _PROGRAMS and inputs // (2 * parts) >= 512 and parts < 8:
        parts *= 2
    return parts


class PromptProducts:
    """Products of rows of prompts. A row is the same for any number of rows.

    cuBLAS is fastest, but chooses its algorithm by the number of rows. It gets multiples of
    PADDED_ROWS rows, and is only used for a matrix for which all of these were seen to give the
    same rows as the kernel for few rows.
    """

    def __init__(self, most_rows: int) -> None:
        """`most_rows` is the largest number of rows of a step."""
        self._sizes = range(PADDED_ROWS, most_rows + PADDED_ROWS, PADDED_ROWS)
        self._agree: dict[tuple[torch.Size, torch.dtype, bool], bool] = {}

    def __call__(self, x: torch.Tensor, linear: Linear) -> Product:
        rows = len(x)
        if isinstance(linear, QuantisedLinear):
            # A whole step of rows is computed for each time that the matrix is converted.
            linear = dequantised(linear, x.dtype)
        if not isinstance(linear, PlainLinear):
            return Product(linear(x), 1)
        if rows <= _FEW[-1] or rows > self._sizes[-1] or not self._agrees(linear):
            return few_rows(x, linear, 1)
        missing = -rows % PADDED_ROWS
        return Product(linear(F.pad(x, (0, 0, 0, missing)) if missing else x)[:rows], 1)

    def _agrees(self, linear: PlainLinear) -> bool:
        """Return whether cuBLAS computes the same rows as the kernel, by trying it once."""
        weight = linear.weight
        key = weight.shape, weight.dtype, linear.bias is not None
        found = self._agree.get(key)
        if found is None:
            found = weight.dtype != torch.float32 and self._tried(linear)
            self._agree[key] = found
        return found

    def _tried(self, linear: PlainLinear) -> bool:
        weight = linear.weight
        noise = torch.Generator(weight.device).manual_seed(0)
        shape = self._sizes[-1], weight.shape[1]
        x = torch.randn(shape, generator=noise, device=weight.device, dtype=weight.dtype)
        few = few_rows(x[: _FEW[-1]], linear, 1).sums[0].to(weight.dtype)
        every = linear(x)
        return torch.equal(every[: len(few)], few) and all(
            torch.equal(linear(x[:size]), every[:size]) for size in self._sizes
        )


def add_and_norm(
    x: torch.Tensor, change: Product | None, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Add a product to the residual stream `x` (T x hidden) in place, and return its norm, or `x`
    itself if there is no `weight`."""
    rows, width = x.shape
    sums, parts, early = (x, 0, False) if change is None else (*change[:2], change.early)
    normed = x if weight is None else torch.empty_like(x)
    block = power_of_two(width)
    kernels.add_and_norm[(rows,)](
        x, sums, _or(weight, x), normed, rows, eps,
        WIDTH=width, BLOCK=block, SPLITS=parts, NORMED=weight is not None,
        EARLY=early, launch_pdl=early, num_warps=_warps(block),
    )  # fmt: skip
    return normed


def gated(product: Product, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return silu(gate) * up (T x width) of the product of gate and up."""
    rows = product.sums.shape[-2]
    inner = product.sums.new_empty((rows, width), dtype=dtype)
    kernels.gated[(rows, -(-width // 1024))](
        product.sums, inner, rows, WIDTH=width, BLOCK=1024, SPLITS=product.parts,
        EARLY=product.early, launch_pdl=product.early, num_warps=4,
    )  # fmt: skip
    return inner


def _warps(block: int) -> int:
    return max(1, min(8, block // 512))


def _or(tensor: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or another one for a kernel that does not use it."""
    return other if tensor is None else tensor


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How a product is divided into heads: their numbers and width, the norms of queries and keys
    (head_dim) if the model has them, and the tables of the rotary embedding."""

    heads: int
    kv_heads: int
    width: int
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    eps: float

    def turn(
        self,
        product: Product,
        positions: torch.Tensor,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Return the turned queries (T x heads x width), and write keys and values to their slots.

        `keys` and `values` are kv_heads x slots x width, the memory of one layer.
        """
        rows, dtype = product.sums.shape[-2], keys.dtype
        queries = product.sums.new_empty((rows, self.heads, self.width), dtype=dtype)
        kernels.turn_and_keep[(rows, self.heads + 2 * self.kv_heads)](
            product.sums, _or(self.query_norm, keys), _or(self.key_norm, keys), self.cos, self.sin,
            positions, slots, queries, keys, values, rows, keys.shape[1], self.eps,
            HEADS=self.heads, KV_HEADS=self.kv_heads, WIDTH=self.width,
            BLOCK=power_of_two(self.width), SPLITS=product.parts,
            HEAD_NORMS=self.query_norm is not None, EARLY=product.early,
            launch_pdl=product.early, num_warps=1,
        )  # fmt: skip
        return queries


def attend_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    chunks: int,
    window: int,
) -> torch.Tensor:
    """Return the attention (T x (heads * width)) of rows that continue texts.

    Row t attends to the last `window` (0: all) of its `lengths[t]` positions, at most `chunks *
    CHUNK`, whose blocks are in row t of `tables`.
    """
    rows, heads, width = queries.shape
    kv_heads, places, _ = keys.shape
    partial = queries.new_empty((rows, heads, chunks, width), dtype=torch.float32)
    weights = queries.new_empty((rows, heads, chunks, 2), dtype=torch.float32)
    out = queries.new_empty(rows, heads * width)
    exact, block = queries.dtype == torch.float32, power_of_two(width)
    kernels.attend_chunk[(rows, kv_heads, chunks)](
        queries, keys, values, tables, lengths, partial, weights, places, tables.shape[1], chunks,
        _LOG2_E / width**0.5, window,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, GROUP=max(16, power_of_two(heads // kv_heads)),
        BLOCK=max(16, block), KEYS=32 if exact else 64, CHUNK=CHUNK, PAGE=BLOCK, EXACT=exact,
        EARLY=_EARLY, launch_pdl=_EARLY, num_warps=4, num_stages=2,
    )  # fmt: skip
    kernels.join_chunks[(rows, heads)](
        partial, weights, lengths, out, chunks, window,
        HEADS=heads, WIDTH=width, BLOCK=block, CHUNK=CHUNK, EARLY=_EARLY, launch_pdl=_EARLY,
        num_warps=1,
    )  # fmt: skip
    return out


def attend_prompts(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Return the attention (T x (heads * width)) of rows of prompts.

    `keys` and `values` (kv_heads x places x width) have the positions of each session one after
    another. `tiles` (tiles x 4) has for each: its first row, its rows, the position of the first,
    and the place of position 0 of its session.
    """
    rows, heads, width = queries.shape
    kv_heads, places, _ = keys.shape
    out = queries.new_empty(rows, heads * width)
    exact = queries.dtype == torch.float32
    kernels.attend_tile[(len(tiles), heads)](
        queries, keys, values, tiles, out, places, _LOG2_E / width**0.5, window,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, BLOCK=max(16, power_of_two(width)),
        ROWS=tile_rows(exact), KEYS=32 if exact else _TILE_KEYS, EXACT=exact,
        num_warps=4 if exact else 8, num_stages=2 if exact else 3,
    )  # fmt: skip
    return out


def peaks(logits: torch.Tensor) -> Peaks:
    """Return the peaks of logits (rows x vocabulary, float32). A row is the same for any number of
    rows."""
    rows, size = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    largest = logits.new_empty(rows)
    totals = torch.empty(rows, dtype=torch.float64, device=logits.device)
    kernels.peaks[(rows,)](
        logits, ids, largest, totals, size, BLOCK=min(4096, power_of_two(size)), num_warps=8
    )
    return Peaks(ids, largest, totals)


def tile_rows(exact: bool) -> int:
    """Return the number of rows of a prompt that attend in one program."""
    return 32 if exact else _TILE_ROWS


def compiled() -> str:
    """Return the version of the compiler of the kernels."""
    return f"triton-{triton.__version__}"
