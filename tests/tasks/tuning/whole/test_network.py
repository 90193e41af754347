"""Derivatives by all weights, against torch's autograd on transformers' models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.families import architecture
from shoal.tasks.tuning.whole import network
from shoal.tasks.tuning.whole.network import WholeNetwork, answer
from tests.tasks.engine.conftest import Checkpoint, make_checkpoint

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Llama", {"tie_word_embeddings": True}),
    ("Qwen2", {"use_sliding_window": False}),
    ("Qwen3", {"head_dim": 16}),
    ("Mistral", {"sliding_window": 8}),
    ("Phi3", {}),
    ("Gemma2", {"head_dim": 8, "sliding_window": 8}),
    ("Gemma3", {"head_dim": 8, "sliding_window": 8}),
]


def batch(made: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
    random, vocab = np.random.default_rng(5), int(made.config["vocab_size"])
    # transformers computes no derivative by the row of its padding, which is one of the first.
    tokens, targets = (torch.from_numpy(random.integers(3, vocab, (5, 17))) for _ in range(2))
    targets[0, :4] = -1
    targets[1, 12:] = -1
    targets[2] = -1
    return tokens, targets


def opened(made: Checkpoint) -> WholeNetwork:
    found, state = WholeNetwork(architecture(made.config)), made.model.state_dict()
    for role in found.weights:
        found.set(role, state[role].float())
    return found


@pytest.mark.parametrize(("family", "config"), FAMILIES, ids=str)
def test_derivatives_are_those_of_autograd(
    family: str, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "PART_POSITIONS", 40)  # two rows at once
    monkeypatch.setattr(network, "LEAST_ROWS", 7)
    monkeypatch.setattr(network, "LOGITS", 1)
    made = make_checkpoint(tmp_path, family, **config, initializer_range=0.15)
    tokens, targets = batch(made)
    model = made.model.float()
    logits = model(tokens, use_cache=False).logits
    wanted = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
    )
    wanted.backward()
    net = opened(made)
    loss, counted = net.compute(tokens, targets, back=True)
    assert counted == int((targets >= 0).sum())
    assert loss == pytest.approx(wanted.item(), rel=1e-6)
    named = dict(model.named_parameters())
    assert set(net.weights) == set(named)
    for role, parameter in named.items():
        found = net.gradient(role)
        assert (found - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), role
    assert net.compute(tokens, targets, back=False)[0] == pytest.approx(loss, rel=1e-6)
    assert not net.gradient("model.norm.weight").any(), "the derivatives are those of one batch"


def test_requests_that_are_malformed_are_refused(tmp_path: Path) -> None:
    net = opened(make_checkpoint(tmp_path, "Llama"))
    role = "model.norm.weight"
    data = net.weights[role].detach().numpy().tobytes()
    ids = np.zeros((2, 3), "<i4").tobytes()
    bad = np.full((2, 3), 10**6, "<i4").tobytes()
    infinite = np.full(len(data) // 4, np.inf, "<f4").tobytes()
    for header, payload, code in (
        (("set", "nix"), data, "bad-message"),
        (("set", role), data[4:], "bad-tensor"),
        (("set", role), infinite, "not-finite"),
        (("gradient", "nix"), b"", "bad-message"),
        (("compute", 2, 3, True), ids, "bad-message"),
        (("compute", 0, 3, True), b"", "bad-message"),
        (("compute", 2, 3, True), bad + ids, "bad-token"),
        (("compute", 2, 3, True), ids + bad, "bad-token"),
        (("compute", 1, 4000, True), bytes(8 * 4000), "too-long"),
    ):
        with pytest.raises(EngineError) as refused:
            answer(net, header, memoryview(bytearray(payload)))
        assert refused.value.code == code
    reply, _ = answer(net, ("compute", 2, 3, True), memoryview(bytearray(ids + ids)))
    assert reply[0] == "ok" and reply[2] == 6
