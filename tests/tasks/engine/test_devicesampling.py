"""Tokens that are chosen on a device are those of the specification, as numpy chooses them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.tasks.engine.compute.devicesampling import choose_all, gumbel, mix
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.engine.sampling import Change, choose
from shoal.tasks.engine.sampling import gumbel as gumbel_in_numpy

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "sampling.md"
DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]
MASK = (1 << 64) - 1


def rows(columns: int) -> list[list[str]]:
    lines = SPEC.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if len(row) == columns and row[0][:1].isdigit()]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def test_the_noise_vectors_of_the_specification(device: torch.device) -> None:
    vectors = rows(5)
    assert len(vectors) >= 6
    for seed, position, token, _, noise in vectors:
        found = gumbel([(int(seed), int(position))], int(token) + 1, device)[0, -1].item()
        assert math.isclose(found, float(noise), rel_tol=1e-12)


def test_the_hash_is_that_of_unsigned_words(device: torch.device) -> None:
    def plain(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    words = [0, 1, -1, 2**63 - 1, -(2**63), *range(-(10**18), 10**18, 10**16 + 7)]
    mixed = mix(torch.tensor(words, device=device)).tolist()
    assert [word & MASK for word in mixed] == [plain(word & MASK) for word in words]


def test_the_choice_vectors_of_the_specification(device: torch.device) -> None:
    vectors = rows(7)
    assert len(vectors) >= 6
    logits = torch.tensor([(i * i * 37 % 101) / 16 for i in range(64)], device=device)
    asked = [
        (Sampling(float(temperature), int(top_k), float(top_p), int(seed)), int(position))
        for temperature, top_k, top_p, seed, position, _, _ in vectors
    ]
    found = choose_all(logits.expand(len(asked), 64), asked)
    for chosen, (*_, token, logprob) in zip(found, vectors, strict=True):
        assert not isinstance(chosen, EngineError)
        assert chosen[0] == int(token)
        assert math.isclose(chosen[1], float(logprob), abs_tol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(1.0),
        Sampling(0.7, 5),
        Sampling(1.3, 0, 0.8),
        Sampling(2.0, 40, 0.95),
        Sampling(100.0, 0, 0.999),
        Sampling(1e-6, 3, 0.5),
        Sampling(1.0, 10_000, 1e-9),
        Sampling(1.0, min_p=0.02),
        Sampling(1.5, 12, 0.9, min_p=0.01),
        Sampling(100.0, min_p=5e-324),
    ],
)
def test_choices_equal_those_of_numpy(sampling: Sampling, device: torch.device) -> None:
    generator = np.random.default_rng(5)
    logits = (generator.normal(size=(20, 700)) * 3).round(1).astype(np.float32)  # with many ties
    asked = [(sampling._replace(seed=2**63 + p), p) for p in range(20)]
    found = choose_all(torch.from_numpy(logits).to(device), asked)
    for row, (seeded, position), chosen in zip(logits, asked, found, strict=True):
        token, logprob = choose(row, seeded, position)
        assert not isinstance(chosen, EngineError)
        assert chosen[0] == token and math.isclose(chosen[1], logprob, abs_tol=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 20, 0.95, min_p=0.01)])
def test_changed_choices_equal_those_of_numpy(sampling: Sampling, device: torch.device) -> None:
    """In a batch in which every other row has rules, of a different number of ids each."""
    generator = np.random.default_rng(6)
    logits = (generator.normal(size=(20, 700)) * 3).astype(np.float32)
    logits[3, 5] = -np.inf
    asked = [(sampling._replace(seed=p), p) for p in range(20)]
    changes = {}
    for row in range(1, 20, 2):
        ids = generator.permutation(700)[: 30 * row]
        values = generator.normal(size=(3, len(ids)))
        changes[row] = Change(ids, values[0] * 3, np.exp(values[1]), values[2])
    found = choose_all(torch.from_numpy(logits).to(device), asked, changes=changes)
    plain = choose_all(torch.from_numpy(logits).to(device), asked)
    for row, (seeded, position) in enumerate(asked):
        token, logprob = choose(logits[row], seeded, position, changes.get(row))
        chosen = found[row]
        assert not isinstance(chosen, EngineError)
        assert chosen[0] == token and math.isclose(chosen[1], logprob, abs_tol=1e-6)
        assert row % 2 or chosen == plain[row], "whatever the other rows have"
    assert sum(one != other for one, other in zip(found, plain, strict=True)) > 5


def test_all_noise_equals_that_of_numpy(device: torch.device) -> None:
    found = gumbel([(2**64 - 1, 2**40)], 50_000, device)[0].cpu().numpy()
    expected = gumbel_in_numpy(2**64 - 1, 2**40, np.arange(50_000))
    assert np.abs(found - expected).max() < 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, 2, 0.5)])
def test_a_row_that_is_not_finite_fails_alone(
    bad: float, sampling: Sampling, device: torch.device
) -> None:
    logits = torch.ones(3, 9, device=device)
    logits[1, 4] = bad
    good, failed, other = choose_all(logits, [(sampling, 7)] * 3)
    assert isinstance(failed, EngineError) and failed.code == "not-finite"
    assert "position 7" in failed.message and good == other
    assert not isinstance(good, EngineError)


def test_excluded_tokens_are_never_chosen(device: torch.device) -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]], device=device)
    (found,) = choose_all(logits, [(Sampling(1.0, seed=3), 1)])
    assert not isinstance(found, EngineError) and found[0] in (0, 2)
