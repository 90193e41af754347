"""Chunk files into tensors: every lie about them is found before it is computed with."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from shoal.tasks.engine.compute.weights import Weights
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import TensorSource

Cut = Callable[..., TensorSource]
SHAPES = {"a": (6, 4), "b": (2, 4)}


def code(work: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as failure:
        work()
    return failure.value.code


@pytest.fixture
def sources(tmp_path: Path, cut_one: Cut) -> tuple[TensorSource, TensorSource]:
    first = torch.arange(24.0).view(6, 4)
    second = torch.arange(8.0).view(2, 4) / 3
    return (
        cut_one(first, ("a",), tmp_path / "chunks", 40),
        cut_one(second.half(), ("b", "tied"), tmp_path / "chunks", 6),
    )


def test_rows_are_fused_and_converted(sources: tuple[TensorSource, ...]) -> None:
    weights = Weights(sources, SHAPES, "bfloat16")
    fused = weights.read("a", "b")
    expected = torch.cat((torch.arange(24.0), (torch.arange(8.0) / 3).half().float()))
    assert torch.equal(fused, expected.bfloat16().view(8, 4))
    assert weights.read_optional("c") is None


def test_missing_and_misshapen_tensors_are_refused_unread(
    sources: tuple[TensorSource, ...],
) -> None:
    first, second = (replace(item, chunks=("/nowhere",) * len(item.chunks)) for item in sources)
    assert code(lambda: Weights((first,), SHAPES, "float32")) == "missing-tensor"
    changes: list[dict[str, Any]] = [
        {"shape": (4, 6)},
        {"dtype": "I64"},
        {"digests": first.digests[1:]},
    ]
    for change in changes:
        lies = (replace(first, **change), second)
        assert code(partial(Weights, lies, SHAPES, "float32")) == "bad-tensor"


def read(source: TensorSource) -> Callable[[], torch.Tensor]:
    return lambda: Weights((source,), {"a": source.shape}, "float32").read("a")


def test_a_changed_chunk_is_found(sources: tuple[TensorSource, ...]) -> None:
    path = Path(sources[0].chunks[1])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert code(read(sources[0])) == "digest-mismatch"


def test_chunks_must_fit_exactly(sources: tuple[TensorSource, ...], tmp_path: Path) -> None:
    first = sources[0]
    short = replace(first, chunks=first.chunks[:-1], digests=first.digests[:-1])
    assert code(read(short)) == "bad-tensor"
    long = replace(first, chunks=first.chunks * 2, digests=first.digests * 2)
    assert code(read(long)) == "bad-tensor"
    odd, empty = tmp_path / "odd", tmp_path / "empty"
    odd.write_bytes(b"abcde")
    empty.write_bytes(b"")
    for path in (odd, empty):
        digest = hashlib.sha256(path.read_bytes()).digest()
        lie = replace(first, chunks=(str(path),), digests=(digest,))
        assert code(read(lie)) == "bad-tensor"


def test_only_plain_files_of_bounded_size_are_read(
    sources: tuple[TensorSource, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sources[0]
    for path in ("/dev/zero", str(tmp_path), str(tmp_path / "absent")):
        lie = replace(first, chunks=(path,), digests=(b"",))
        assert code(read(lie)) == "bad-tensor"
    monkeypatch.setattr("shoal.tasks.engine.compute.weights.CHUNK_BYTES", 39)
    assert code(read(first)) == "bad-tensor"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3.4e38])
def test_values_must_be_finite_after_conversion(bad: float, tmp_path: Path, cut_one: Cut) -> None:
    values = torch.zeros(4, 4)
    values[2, 2] = bad
    source = cut_one(values, ("a",), tmp_path / "chunks")
    weights = Weights((source,), {"a": (4, 4)}, "bfloat16")
    assert code(lambda: weights.read("a")) == "bad-tensor"
