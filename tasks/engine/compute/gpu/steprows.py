"""Rows of a step as the kernels take them: positions, slots, lengths and tables of blocks.

Numbers of a step travel to the card together, because each copy costs as much as a kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...kv.blocks import BLOCK, BlockTable, blocks_for
from ..device import ComputeDevice
from .launch import CHUNK, power_of_two


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a step are (each T): int32 positions, slots (-1: none), and, for rows that
    continue a text, how many positions they attend to, with their own."""

    positions: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor  # rows x blocks


class Seats:
    """The rows of a graph on the card: token ids, positions, slots, lengths and tables.

    Numbers are written into one page-locked memory, which travels at once. Tables only travel when
    one has changed.
    """

    def __init__(self, rows: int, chunks: int, device: ComputeDevice) -> None:
        self._tables = np.zeros((rows, chunks * CHUNK // BLOCK), dtype=np.int32)
        self._seen: list[tuple[BlockTable | None, int]] = [(None, -1)] * rows
        self._device = device
        where = device.torch
        self._staged = device.staging(4 * rows, torch.int32).view(4, rows).zero_()
        self._numbers = self._staged.numpy()
        self._on_device = self._staged.to(where)
        self.tokens, positions, slots, lengths = self._on_device
        tables = torch.zeros(self._tables.shape, dtype=torch.int32, device=where)
        self.rows = Rows(positions, slots, lengths, tables)

    def take(self, places: Sequence[tuple[BlockTable, int]], tokens: Sequence[int]) -> None:
        """Put rows, each a table and a position, on the card, with their token ids if they have
        some. Further rows have no session.

        The card must have read the rows before.
        """
        ids, positions, slots, lengths = self._numbers
        count, changed = len(places), False
        ids[: len(tokens)] = tokens
        slots[count:] = -1
        lengths[count:] = positions[count:] = 0
        for row, (table, position) in enumerate(places):
            positions[row], slots[row] = position, table.slot(position)
            lengths[row] = position + 1
            state = table, table.changes
            if self._seen[row] != state:
                # Blocks after the position may be held already (kv/ahead.py).
                blocks = table.blocks[: self._tables.shape[1]]
                self._tables[row, : len(blocks)] = blocks
                self._seen[row] = state
                changed = True
        self._on_device.copy_(self._staged, non_blocking=True)
        if changed:
            self.rows.tables.copy_(self._device.upload(torch.from_numpy(self._tables)))


def chunks_for(positions: int) -> int:
    """Return for how many chunks a graph is made that attends to some positions: a power of two."""
    return power_of_two(-(-positions // CHUNK))


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of prompts: their positions and slots (T), the slots of all positions of their sessions
    one after another, and the tiles in which they attend (`launch.attend_prompts`). All int32."""

    positions: torch.Tensor
    slots: torch.Tensor
    seen: torch.Tensor
    tiles: torch.Tensor


def prompt_rows(
    places: Sequence[tuple[BlockTable, int, int]], high: int, device: ComputeDevice
) -> PromptRows:
    """Return the rows of pieces, each a table, its first position and its number of rows.

    `high` is the number of rows of a tile.
    """
    positions, slots, seen = [], [], []
    tiles: list[tuple[int, int, int, int]] = []
    row = origin = 0
    for table, position, count in places:
        end = position + count
        blocks = np.asarray(table.blocks[: blocks_for(end)], dtype=np.int32)
        every = (blocks[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int32)).reshape(-1)[:end]
        positions.append(np.arange(position, end, dtype=np.int32))
        slots.append(every[position:])
        seen.append(every)
        for first in range(position // high * high, end, high):
            low, last = max(first, position), min(first + high, end)
            tiles.append((row + low - position, last - low, low, origin))
        row, origin = row + count, origin + end
    # One copy to the card for all four.
    parts = [np.concatenate(part) for part in (positions, slots, seen)]
    parts.append(np.array(tiles, dtype=np.int32).reshape(-1))
    flat = device.upload(torch.from_numpy(np.concatenate(parts)))
    first, second, third, last_part = flat.split([part.size for part in parts])
    return PromptRows(first, second, third, last_part.view(-1, 4))
