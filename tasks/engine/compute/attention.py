"""Attention of the rows of one step, each over the KV of its own session.

A row's result depends on its own session only, whatever else is in the step, and however a prompt
is divided into parts. A row that continues a text attends alone. The rows of a prompt attend in
tiles of 16, the positions of one block: a tile is always computed as a whole, with zeros in place
of rows that are not in this step and of keys that are not computed yet. In torch 2.13, the result
of a row depends on the number of rows and of keys in the call, because the order of the sums does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F

from ..kv.blocks import BLOCK, BlockTable
from ..kv.states import StateUse
from .device import CPU, ComputeDevice
from .scores import PLAIN, Scoring


class AttendingPiece(Protocol):
    """Rows of one session: `count` consecutive positions from `position` on."""

    @property
    def table(self) -> BlockTable: ...

    @property
    def count(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def decode(self) -> bool: ...

    @property
    def state(self) -> StateUse | None: ...


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows `first` to `end` - 1 of a step, which attend together.

    The tile's first position is `start`. `offset` is that of row `first` within the tile. `size` is
    the number of its positions, 1 or 16.
    """

    table: BlockTable
    first: int
    end: int
    start: int
    offset: int
    size: int


class Attention:
    """Rows of one step: their positions (T), the slots of their KV (T), and how they attend."""

    def __init__(
        self, pieces: Sequence[AttendingPiece], kv_heads: int, device: ComputeDevice = CPU
    ) -> None:
        positions: list[int] = []
        slots: list[int] = []
        self._unwritten: list[tuple[int, int]] = []  # slots at the end of tiles
        tiles: list[_Tile] = []
        self.runs: list[tuple[int, int, int]] = []
        """The first row, the end and the slot of the recurrent states of each session with some."""
        row = spans = 0
        for piece in pieces:
            places = range(piece.position, piece.position + piece.count)
            positions += places
            for first, end in piece.table.spans(places.start, places.stop):
                slots += range(first, end)
                spans += 1
            tiles += _tiles(piece, row)
            if not piece.decode and places.stop % BLOCK:
                after = piece.table.slot(places.stop - 1) + 1
                self._unwritten.append((after, after + BLOCK - places.stop % BLOCK))
            if piece.state is not None:
                self.runs.append((row, row + piece.count, piece.state.slot))
            row += piece.count
        self.end = max(positions) + 1
        """The position after the highest one."""
        self.positions = device.upload(torch.tensor(positions))
        self.slots = device.upload(torch.tensor(slots))
        self._device = device
        self._place = (slots[0], slots[-1] + 1) if spans == 1 else None
        self._kv_heads = kv_heads
        self._tiles = tiles
        self._spans: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by (tile, first key)
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}  # by (start, first key, window)

    def write(self, memory: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the first T rows (each kv_heads x head_dim) into their slots of keys or values.

        Unused rows of a tile may hold values of an earlier session. A mask hides them, but a NaN
        would spread, so this writes zeros there.
        """
        for first, end in self._unwritten:
            memory[:, first:end] = 0
        new = rows.transpose(0, 1)
        if self._place is not None:
            first, end = self._place
            memory[:, first:end] = new[:, : end - first]
        else:
            memory.index_copy_(1, self.slots, new[:, : len(self.slots)])

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        window: int,
        scoring: Scoring = PLAIN,
    ) -> torch.Tensor:
        """Return the causal attention of queries (rows x heads x head_dim), of which the first T
        count.

        `keys` and `values` have the shape (kv_heads, slots, head_dim). `window` is the number of
        positions to which a row attends, 0 for all. The result is rows x (heads * head_dim).
        """
        rows, heads, width = queries.shape
        out = queries.new_zeros(rows, heads * width)
        group = heads // self._kv_heads
        for number, tile in enumerate(self._tiles):
            first_key = max(0, tile.start + 1 - window) if window else 0
            mine = self._gather(keys, number, first_key), self._gather(values, number, first_key)
            some = queries[tile.first : tile.end]
            if tile.size == 1:
                # Heads that share keys become rows of one query, so the keys need not be repeated.
                grouped = some.view(1, self._kv_heads, group, width)
                attended = scoring.attend(grouped, *mine)
                out[tile.first] = attended.reshape(-1)
                continue
            if tile.end - tile.first < tile.size:
                after = tile.size - tile.offset - (tile.end - tile.first)
                some = F.pad(some, (0, 0, 0, 0, tile.offset, after))
            mask = self.mask(tile.start, first_key, window)
            attended = scoring.attend(some.transpose(0, 1)[None], *mine, mask)
            there = attended[0].transpose(0, 1).reshape(tile.size, -1)
            out[tile.first : tile.end] = there[tile.offset : tile.offset + tile.end - tile.first]
        return out

    def _gather(self, memory: torch.Tensor, number: int, first_key: int) -> torch.Tensor:
        """Return the keys or values of a tile (1 x kv_heads x positions x head_dim), without a copy
        if they are consecutive."""
        place = number, first_key
        spans = self._spans.get(place)
        if spans is None:
            tile = self._tiles[number]
            spans = self._spans[place] = tile.table.spans(first_key, tile.start + tile.size)
        if len(spans) == 1:
            ((first, end),) = spans
            return memory[None, :, first:end]
        return torch.cat([memory[:, first:end] for first, end in spans], 1)[None]

    def mask(self, start: int, first_key: int, window: int) -> torch.Tensor:
        """Return a mask (16 x keys) that is True where the row's query may attend to the key."""
        place = start, first_key, window
        mask = self._masks.get(place)
        if mask is None:
            where = self._device.torch
            rows = torch.arange(start, start + BLOCK, device=where)[:, None]
            columns = torch.arange(first_key, start + BLOCK, device=where)[None]
            mask = columns <= rows
            if window:
                mask &= columns > rows - window
            self._masks[place] = mask
        return mask


def _tiles(piece: AttendingPiece, row: int) -> list[_Tile]:
    """Divide a piece, whose first row is row number `row` of the step, into tiles."""
    if piece.decode:
        return [_Tile(piece.table, row, row + 1, piece.position, 0, 1)]
    tiles, end = [], piece.position + piece.count
    for start in range(piece.position // BLOCK * BLOCK, end, BLOCK):
        low, high = max(start, piece.position), min(start + BLOCK, end)
        first = row + low - piece.position
        tiles.append(_Tile(piece.table, first, first + high - low, start, low - start, BLOCK))
    return tiles
