"""Low-rank changes: a row of a wide model is the same alone and beside others."""

from typing import Any, cast

import pytest
import torch

from shoal.tasks.engine.compute.lora import AdaptedRows, Lora, LowRank, StepAdapters
from shoal.tasks.engine.compute.products import linear_of, packs

WIDE = 2048  # oneDNN computes a single row of this width in another order


class OneChange:
    """An adapter that changes one matrix of one layer."""

    def __init__(self, dtype: torch.dtype, rank: int) -> None:
        random = torch.Generator().manual_seed(rank)
        down = torch.randn(rank, WIDE, generator=random).to(dtype)
        up = torch.randn(WIDE, rank, generator=random).to(dtype)
        self.change = LowRank(linear_of(down, None), linear_of(up, None), 16, 16 + WIDE)

    def changes(self, layer: int, matrix: str) -> list[LowRank]:
        return [self.change] if (layer, matrix) == (0, "down") else []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 3, 8, 64, 256])
def test_a_row_alone_is_the_row_among_others(dtype: torch.dtype, rank: int) -> None:
    if not packs(dtype):
        pytest.skip("this machine has no products whose rows are independent")
    torch.set_num_threads(1)
    lora = cast(Lora, OneChange(dtype, rank))
    x = torch.randn(40, WIDE, generator=torch.Generator().manual_seed(1)).to(dtype)

    def changed(*rows: tuple[int, int]) -> Any:
        step = StepAdapters([AdaptedRows(lora, first, end) for first, end in rows], 2)
        out = torch.zeros(len(x), WIDE + 32, dtype=dtype)
        with torch.inference_mode():
            return step.change(out, x, 0, "down")

    together = changed((0, 40))
    assert torch.count_nonzero(together[:, :16]) == torch.count_nonzero(together[:, -16:]) == 0
    for first, end in ((0, 1), (39, 40), (3, 5), (7, 24)):
        some = changed((first, end))
        assert torch.equal(some[first:end], together[first:end])
        assert torch.count_nonzero(some[:first]) == torch.count_nonzero(some[end:]) == 0
    assert torch.equal(changed((0, 1), (1, 17), (17, 40)), together)
    with torch.inference_mode():
        unchanged = StepAdapters([AdaptedRows(lora, 0, 4)], 2).change(x.clone(), x, 1, "down")
    assert torch.equal(unchanged, x)
