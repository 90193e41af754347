"""Which families may use packed hidden states: the check of their text and of their routing.

The yardstick is what computing in bfloat16 instead of float32 changes, which every user accepts.
Packing between all layers, while computing in float32, must change less. For most families there
is no trained model here, so random models stand in, with weights large enough for clear choices.
Run this file to see the figures: `python -m tests.tasks.engine.test_packed_families`.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer

from shoal.tasks.engine import families
from shoal.tasks.engine.activations.layout import PACKED_FAMILIES
from shoal.tasks.engine.compute import experts
from shoal.tasks.engine.interface import DType
from tests.tasks.engine.conftest import Chain, Checkpoint, Make, cut, make_checkpoint
from tests.tasks.engine.test_llama import CASES

ROOT = Path(__file__).resolve().parents[3]
TEXT = (
    "And it came to pass in those days, that there went out a decree from the king, that all the "
    "people should be numbered, every man according to the house of his fathers. And the children "
    "of the land went up, and dwelt in the city by the side of the river, and they said one to "
    "another, Come, let us build an house for the LORD our God. "
) * 2
POSITIONS = 90
PROMPTS = 3
WIDTH = {"hidden_size": 128, "intermediate_size": 192, "initializer_range": 0.12}
FAMILIES = (
    "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3", "mixtral", "qwen3_moe",
    "gpt_oss", "qwen3_next",
)  # fmt: skip


class Loss(NamedTuple):
    """How much a change of the computation changed the results.

    `agreement` is the share of positions with the same most likely token, `divergence` the mean
    Kullback-Leibler divergence in nats, and `routing` the share of rows with the same experts.
    """

    agreement: float
    divergence: float
    routing: float

    def is_at_most(self, other: "Loss") -> bool:
        """Return whether this loss is no larger than the other one, within the noise of a few
        hundred positions."""
        return (
            self.divergence <= other.divergence
            and self.agreement >= other.agreement - 0.02
            and self.routing >= other.routing - 0.005
        )


@contextmanager
def routes() -> Iterator[list[torch.Tensor]]:
    """Record the experts of each row, by layer, in ascending order."""
    found: list[torch.Tensor] = []
    route = experts.ExpertsPart.route

    def recording(
        self: experts.ExpertsPart, normed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chances, chosen = route(self, normed)
        found.append(chosen.sort(-1).values[:POSITIONS].clone())
        return chances, chosen

    experts.ExpertsPart.route = recording  # type: ignore[method-assign]
    try:
        yield found
    finally:
        experts.ExpertsPart.route = route  # type: ignore[method-assign]


def computed(
    made: Checkpoint, tokens: list[int], dtype: DType, *, packed: bool
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the logits of all positions, and the experts of all rows."""
    chain = Chain(made, made.splits(made.layers), dtype)
    chain.name = b"measured".ljust(16, b".")
    for stage in chain.stages:
        stage.open(chain.name, POSITIONS, packed=packed)
    with routes() as found:
        return chain.logits(tokens), found


def losses(made: Checkpoint) -> tuple[Loss, Loss]:
    """Return the losses of packing in float32, and of bfloat16 without packing."""
    random = torch.Generator().manual_seed(5)
    sums = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(PROMPTS):
        tokens = torch.randint(0, 101, (POSITIONS,), generator=random).tolist()
        exact, exact_routes = computed(made, tokens, "float32", packed=False)
        for place, dtype in enumerate(("float32", "bfloat16")):
            packed = dtype == "float32"
            other, other_routes = computed(made, tokens, dtype, packed=packed)  # type: ignore[arg-type]
            one, two = exact.log_softmax(1), other.log_softmax(1)
            pairs = zip(exact_routes, other_routes, strict=True)
            same = [float((a == b).all(-1).float().mean()) for a, b in pairs]
            sums[place] += torch.tensor((
                float((exact.argmax(1) == other.argmax(1)).float().mean()),
                float((one.exp() * (one - two)).sum(1).mean()),
                sum(same) / len(same) if same else 1.0,
            ), dtype=torch.float64)  # fmt: skip
    packing, rounding = (sums / PROMPTS).tolist()
    return Loss(*packing), Loss(*rounding)


@pytest.mark.ci
@pytest.mark.parametrize("case", FAMILIES)
def test_the_list_has_the_families_that_packing_hardly_changes(case: str, checkpoint: Make) -> None:
    kind, config = CASES[case]
    made = checkpoint(kind, **(WIDTH | config))
    packing, rounding = losses(made)
    family = families.architecture(made.config).family
    assert packing.is_at_most(rounding) == (family in PACKED_FAMILIES), (packing, rounding)


@pytest.mark.ci
def test_the_embedded_model_writes_the_same_text(tmp_path: Path) -> None:
    """This is the only trained model here; the prompts have words of its training."""
    folder = ROOT / "shoal" / "models" / "tiny"
    made = Checkpoint(
        None, json.loads((folder / "config.json").read_text()), cut(folder, tmp_path, 1 << 20)
    )
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids[:POSITIONS]
    assert len(tokens) == POSITIONS
    exact, _ = computed(made, tokens, "float32", packed=False)
    packed, _ = computed(made, tokens, "float32", packed=True)
    one, two = exact.log_softmax(1), packed.log_softmax(1)
    assert float((one.exp() * (one - two)).sum(1).mean()) < 1e-3
    assert int((exact.argmax(1) != packed.argmax(1)).sum()) <= 1


def test_every_family_is_measured() -> None:
    assert {CASES[case][0] for case in FAMILIES} >= {
        kind.removesuffix("ForCausalLM") for kind in families.families()
    }


def main() -> int:
    """Print the losses of all families."""
    for case in FAMILIES:
        kind, config = CASES[case]
        with tempfile.TemporaryDirectory() as folder:
            packing, rounding = losses(make_checkpoint(Path(folder), kind, **(WIDTH | config)))
        passed = "passed" if packing.is_at_most(rounding) else "failed"
        shown = [
            f"{loss.agreement:.3f} | {loss.divergence:.1e} | {loss.routing:.3f}"
            for loss in (packing, rounding)
        ]
        print(f"| {case} | {' | '.join(shown)} | {passed} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
