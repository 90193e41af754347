"""Everything that `shoal model list --supported` prints is compared with transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.tasks.engine.families import families, supported
from shoal.tasks.engine.layouts import INT4, INT8
from tests.tasks.engine.quantised_model import fitting_of, quantised
from tests.tasks.engine.test_llama import CASES, TOKENS, close, differs_at_ties_only

COMBINATIONS = [
    (each.architecture, each.device, precision)
    for each in supported()
    for precision in each.precisions
]


@pytest.mark.parametrize(("architecture", "device", "precision"), COMBINATIONS)
def test_each_combination_gives_the_logits_of_transformers(
    architecture: str, device: str, precision: str, checkpoint: Any, chain: Any, tmp_path: Path
) -> None:
    assert device == "cpu", "another device needs a case of its own"
    cases = [case for case in CASES.values() if f"{case[0]}ForCausalLM" == architecture]
    assert cases, f"no case in test_llama.py has the family {architecture}"
    family, config = cases[0]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    made = checkpoint(family, **config, dtype=dtype)
    if layout := {"int8": INT8, "int4": INT4}.get(precision):
        made, precision = quantised(made, fitting_of(made, layout), tmp_path), "float32"
    ours, theirs = chain(made, made.splits(2), precision).logits(TOKENS), made.logits(TOKENS)
    if precision == "float32":
        assert close(ours, theirs)
    else:
        assert differs_at_ties_only(ours, theirs)


def test_each_module_of_a_family_is_found() -> None:
    found = families()
    assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"} <= found.keys()
    assert len({each.name for each in found.values()}) == len(found)
    assert all(each.kind == kind for kind, each in found.items())
