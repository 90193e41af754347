"""Which native kernels a machine uses: the best that compute what torch does and are not slower."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import ANY

import pytest
import torch

from shoal.tasks.engine.compute import products
from shoal.tasks.engine.compute.native import choice, timing
from shoal.tasks.engine.compute.native.library import KINDS, Kernels, NativeLinear, dense
from shoal.tasks.engine.compute.native.timing import slower
from shoal.tasks.engine.compute.products import linear_of, native_kernels
from shoal.tasks.engine.kernels import VARIABLE, library_path

PATH = library_path()

pytestmark = pytest.mark.skipif(PATH is None, reason="no compiler built the kernels")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Choose again, among two sets of which this machine has the second and better ones."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(choice.SETS, platform.machine(), ("unknown", "portable"))
    choice.choice.cache_clear()
    yield
    choice.choice.cache_clear()


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels be as fast as torch."""
    monkeypatch.setattr(timing, "time_ratio", lambda ours, theirs, x: 1.0)


def test_the_best_kernels_that_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    fast(monkeypatch)
    chosen = choice.choice()
    assert chosen.kernels is not None and chosen.kernels.name == "portable"
    assert chosen.refused == {"unknown": "this processor lacks the instructions"}
    assert not chosen.slow and choice.kernels() is chosen.kernels


@dataclass
class Named:
    name: str


def test_the_next_kernels_where_the_best_differ_from_torch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    differs = {"first": "first attention differs from torch"}
    monkeypatch.setitem(choice.SETS, platform.machine(), ("first", "second"))
    monkeypatch.setattr(choice, "Kernels", lambda path, name, threads: Named(name))
    monkeypatch.setattr(choice, "difference", lambda found: differs.get(found.name))
    monkeypatch.setattr(timing, "slower", lambda found, dtype: None)
    assert choice.choice() == choice.KernelsInUse(cast(Kernels, Named("second")), differs, ANY)
    assert "not used: first attention differs from torch" in capfd.readouterr().err


def test_torch_multiplies_what_it_multiplies_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def ratio(ours: Any, theirs: Any, x: torch.Tensor) -> float:
        assert isinstance(ours, NativeLinear) and not isinstance(theirs, NativeLinear)
        return 3.0 if x.dtype == torch.bfloat16 and len(x) > 1 else 1.4

    monkeypatch.setattr(timing, "time_ratio", ratio)
    if torch.cpu._is_amx_tile_supported():
        pytest.skip("torch multiplies bfloat16 here in any case")
    slow = {torch.bfloat16: "torch takes 33% of the time of these kernels"}
    assert choice.choice().slow == slow
    assert native_kernels(torch.bfloat16) is None
    assert native_kernels(torch.float32) is choice.kernels() is not None
    assert isinstance(linear_of(torch.ones(4, 4), None), NativeLinear)
    assert not isinstance(linear_of(torch.ones(4, 4).bfloat16(), None), NativeLinear)


def test_a_kernel_that_is_slow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATH is not None
    found, original = Kernels(PATH, "portable", 1), Kernels.product

    def slow(self: Kernels, matrix: Any, x: torch.Tensor, out: torch.Tensor) -> None:
        for _ in range(20):
            original(self, matrix, x, out)

    monkeypatch.setattr(timing, "torch_linear", lambda weight, bias: dense(found, weight, bias))
    assert all(slower(found, dtype) is None for dtype in KINDS), "they are as fast as themselves"
    plain = products.PlainLinear
    monkeypatch.setattr(timing, "torch_linear", plain)
    monkeypatch.setattr(Kernels, "product", slow)
    times = slower(found, torch.float32)
    assert times is not None and times > timing.MOST_TIMES


def test_other_programs_do_not_make_kernels_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first rounds, another program takes the processor while the kernels compute."""
    now, calls = [0.0], [0, 0]
    monkeypatch.setattr(timing, "clock", lambda: now[0])

    def product(index: int, busy: int) -> timing.Product:
        def compute(x: torch.Tensor) -> torch.Tensor:
            calls[index] += 1
            now[0] += 9.0 if calls[index] <= busy else 1.0
            return x

        return compute

    x = torch.ones(1)
    assert timing.time_ratio(product(0, 20), product(1, 0), x) == 1.0 and calls == [21, 21]
    calls[:] = 0, 0
    assert timing.time_ratio(product(0, 0), product(1, 0), x) == 1.0 and calls == [5, 5]
    calls[:] = 0, 0
    assert timing.time_ratio(product(0, 999), product(1, 0), x) == 9.0, "these are slow"


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("off", {"unknown": "`SHOAL_KERNELS` is `off`", "portable": "`SHOAL_KERNELS` is `off`"}),
        ("portable", {"unknown": "`SHOAL_KERNELS` is `portable`"}),
    ],
)
def test_the_environment_chooses(
    value: str, refused: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    monkeypatch.setattr(timing, "time_ratio", lambda ours, theirs, x: 9.0)
    chosen = choice.choice()
    assert chosen.refused == refused
    assert (chosen.kernels is None) == (value == "off")
    assert not set(chosen.slow) - {torch.bfloat16}, "kernels that are named are not timed"


def test_another_architecture_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert choice.choice() == choice.KernelsInUse(None, {}, {})


def test_an_installation_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "library_path", lambda: None)
    assert choice.kernels() is None
    assert set(choice.choice().refused.values()) == {
        "the installation has no kernels: it found no C++ compiler"
    }
