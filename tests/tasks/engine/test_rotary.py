"""Tables of the rotary embedding, which grow with what is used and not with what a config says."""

import torch

from shoal.tasks.engine.compute.rotary import Rotary
from shoal.tasks.engine.families import Rope


def test_a_context_of_millions_has_tables_for_the_memory_that_is_there() -> None:
    rotary = Rotary(Rope(1e4), 64, 1 << 24, "float32")
    cos, sin = rotary.first(80)
    assert len(cos) == len(sin) == 80
    assert rotary.first(48)[0] is cos, "a captured step has its address"
    expected, _ = Rotary(Rope(1e4), 64, 80, "float32").rows(torch.arange(80), 80, 80)
    assert torch.equal(cos, expected)


def test_no_table_is_longer_than_the_context() -> None:
    assert len(Rotary(Rope(1e4), 64, 96, "float32").first(1 << 20)[0]) == 96
