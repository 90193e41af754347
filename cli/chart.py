"""Draws curves as text for the terminal."""

import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]
"""(x, y) of each point. Points that are not finite are left out."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row


def chart(line: Points, marks: Points = (), *, width: int = 60, height: int = 10) -> list[str]:
    """Return the rows of a chart. `line` is drawn in dots, of which a letter has 2 x 4, and each of
    `marks` as `o`.

    The left column has the largest and the smallest y, the last row the range of x.
    """
    every = [(x, y) for x, y in (*line, *marks) if math.isfinite(x) and math.isfinite(y)]
    if not every:
        return []
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    wide, tall = max(right - left, 1e-9), max(high - low, 1e-9)
    inner = max(width - _WIDTH - 1, 4)

    def place(x: float, y: float, columns: int, rows: int) -> tuple[int, int]:
        column = round((x - left) / wide * (columns - 1))
        return column, round((high - y) / tall * (rows - 1))

    cells = [[0] * inner for _ in range(height)]
    for x, y in line:
        if math.isfinite(x) and math.isfinite(y):
            column, row = place(x, y, 2 * inner, 4 * height)
            cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    rows = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells]
    for x, y in marks:
        if math.isfinite(x) and math.isfinite(y):
            column, row = place(x, y, inner, height)
            rows[row][column] = "o"
    labels = {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    drawn = [
        f"{labels.get(at, ''):>{_WIDTH}} {''.join(row)}".rstrip() for at, row in enumerate(rows)
    ]
    begin, end = f"{left:g}", f"{right:g}"
    return [*drawn, f"{'':{_WIDTH}} {begin}{end:>{max(1, inner - len(begin))}}"]


_WIDTH = 8  # characters of a label
