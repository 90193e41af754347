"""The result as a folder: the real `peft` loads it, and it is what the trainer computed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shoal.tasks.adapters.folder import scan_folder
from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.tuning.interface import AdapterTensors, Batch, of_adapter
from shoal.tasks.tuning.trainer import optimiser
from shoal.tasks.tuning.trainer.folder import peft_name, write_peft
from shoal.transport.host.real import RealHost
from tests.tasks.tuning.numpy_chain import ARCH, VOCABULARY, NumpyChain, settings

FILES = RealHost().files
CHOSEN = settings()


def write(folder: Path) -> optimiser.Learned:
    learned, chain = optimiser.begin(CHOSEN, module_shapes(ARCH)), NumpyChain()
    random = np.random.default_rng(5)
    for _ in range(3):
        tokens, targets = random.integers(0, VOCABULARY, (2, 3, 8)).astype(np.int32)
        found = chain.computed(
            Batch(tokens, targets), AdapterTensors(CHOSEN.terms, of_adapter(learned.tensors))
        )
        optimiser.apply(learned, found, optimiser.check(found, learned, 24), CHOSEN)
    write_peft(FILES, folder, CHOSEN.terms, learned.tensors, "tiny")
    return learned


def test_tensors_and_terms_are_those_of_the_trainer(tmp_path: Path) -> None:
    learned = write(tmp_path / "out")
    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert found.keys() == {peft_name(name) for name in of_adapter(learned.tensors)}
    for name, each in of_adapter(learned.tensors).items():
        assert (found[peft_name(name)].numpy() == each).all()
    terms = scan_folder(FILES, tmp_path / "out").terms(CHOSEN.root, ARCH)
    assert terms == CHOSEN.terms


def test_peft_loads_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    learned = write(tmp_path / "out")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=VOCABULARY,
    )  # fmt: skip
    base = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(6)[None]
    plain = base(ids).logits.detach()
    tuned = peft.PeftModel.from_pretrained(base, tmp_path / "out")
    state = peft.get_peft_model_state_dict(tuned)
    assert state.keys() == {peft_name(name) for name in of_adapter(learned.tensors)}
    for name, each in of_adapter(learned.tensors).items():
        assert (state[peft_name(name)].numpy() == each).all()
    assert (tuned(ids).logits - plain).abs().max() > 1e-5
    assert tuned.peft_config["default"].lora_alpha == CHOSEN.alpha
