"""Everything that `shoal model list --supported` prints is compared with transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch

from shoal.tasks.engine.families import families, supported
from shoal.tasks.engine.families.reader import JsonReader
from shoal.tasks.engine.layouts import INT4, INT8
from tests.marks import in_ci
from tests.tasks.engine import test_card
from tests.tasks.engine.quantised_model import fitting_of, quantised
from tests.tasks.engine.test_llama import CASES, TOKENS, close, differs_at_ties_only

COMBINATIONS = [
    (each.architecture, precision)
    for each in supported()
    for precision in each.precisions
    if each.device == "cpu"
]


@pytest.mark.parametrize(
    ("architecture", "precision"),
    # test_llama.py compares the logits of float32 with fewer shards and more
    [each for each in COMBINATIONS if each[1] != "float32"]
    + in_ci(*(each for each in COMBINATIONS if each[1] == "float32")),
)
def test_each_combination_gives_the_logits_of_transformers(
    architecture: str, precision: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint, chain = (request.getfixturevalue(name) for name in ("checkpoint", "chain"))
    cases = [case for case in CASES.values() if f"{case[0]}ForCausalLM" == architecture]
    assert cases, f"no case in test_llama.py has the family {architecture}"
    family, config = cases[0]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    made = checkpoint(family, **config, dtype=dtype)
    if layout := {"int8": INT8, "int4": INT4}.get(precision):
        request.getfixturevalue("exact_products")
        made, precision = quantised(made, fitting_of(made, layout), tmp_path), "float32"
    ours, theirs = chain(made, made.splits(2), precision).logits(TOKENS), made.logits(TOKENS)
    if precision == "float32":
        assert close(ours, theirs)
    else:
        assert differs_at_ties_only(ours, theirs)


def test_what_is_listed_for_cards_is_tested_there() -> None:
    """test_card.py, in float32 (on a card, or in Triton's interpreter)."""
    listed = {each.architecture: each.precisions for each in supported() if each.device == "cuda"}
    tested = {f"{name}ForCausalLM": ("float32",) for name in test_card.FAMILIES}
    assert {kind: each for kind, each in listed.items() if each} == tested
    assert listed.keys() == families().keys()


def test_each_module_of_a_family_is_found() -> None:
    found = families()
    assert {"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"} <= found.keys()
    assert len({each.name for each in found.values()}) == len(found)
    assert all(each.kind == kind for kind, each in found.items())


def test_the_family_in_the_docs_can_be_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/families.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "example.py").write_text(code)
    name = "shoal.tasks.engine.families.supported.example"
    spec = importlib.util.spec_from_file_location(name, tmp_path / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 101,
        "max_position_embeddings": 96,
        "sliding_window": 9,
    }
    arch = module.FAMILY.read(JsonReader(sizes))
    assert arch.windows == (9, 0, 9, 0) and arch.qk_norm and arch.kinds[0].rope.theta == 1e6
