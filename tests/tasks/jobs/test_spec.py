"""Tests of the specs of jobs, which come from untrusted peers."""

from typing import Any

import msgpack
import pytest

from shoal.state import defaults as state_defaults
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import BadSpec
from shoal.tasks.jobs.spec import BlobPart, JobSpec, RowOptions, pack_spec, read_spec

ROOT = "ab" * 32
ROW = b'{"prompt": "hello"}'
FIELDS: dict[str, Any] = {"root": ROOT, "lines": ROW}
PART: list[Any] = ["cd" * 32, 100, 20, 40]


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(ROOT, ROW, name="tiny", options=RowOptions(raw=True, max_tokens=7)),
        JobSpec(ROOT, blob=BlobPart("cd" * 32, 9, 3, 9), first=4, last=9, abstract="é"),
        JobSpec(
            ROOT,
            ROW,
            options=RowOptions(sampling=Sampling(0.5, 3, 0.9, 2**64 - 1, 0.25), stop=("\n", "end")),
        ),
    ],
)
def test_specs_survive_a_round_trip(spec: JobSpec) -> None:
    assert read_spec(pack_spec(spec)) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"root": "ab"},
        {"root": None},
        {"lines": b""},
        {"lines": "text"},
        {"blob": PART},  # beside rows
        {"lines": b"", "blob": PART[:3]},
        {"lines": b"", "blob": [*PART[:2], 40, 20]},
        {"lines": b"", "blob": [*PART[:2], 40, 40]},
        {"lines": b"", "blob": [*PART[:2], 40, 101]},
        {"lines": b"", "blob": [PART[0], defaults.INPUT_BYTES + 1, 0, 9]},
        {"lines": b"", "blob": [PART[0], 2**24, 0, defaults.PIECE_BYTES + 1]},
        {"first": 0},
        {"first": 3, "last": 2},
        {"abstract": b"x" * 4 * (defaults.ABSTRACT + 1)},
        {"name": "x" * 129},
        {"name": "\x1b"},
        {"tokens": 1.5},
        {"stop": [b"x"] * 17},
        {"stop": [b""]},
        {"stop": [b"x" * 257]},
        {"sampling": [0.0, 0, 1.0]},
        {"sampling": [0.0, 0, 1.0, 0]},
        {"sampling": [float("nan"), 0, 1.0, 0, 0.0]},
        {"sampling": [0.0, -1, 1.0, 0, 0.0]},
        {"sampling": [0.0, 0, 0.0, 0, 0.0]},
        {"sampling": [0.0, 0, 1.0, -1, 0.0]},
        {"sampling": [0.0, 0, 1.0, 0, 1.5]},
        {"sampling": [True, 0, 1.0, 0, 0.0]},
    ],
)
def test_invalid_specs_are_refused(changes: dict[str, Any]) -> None:
    assert read_spec(msgpack.packb(FIELDS)).lines == ROW
    assert read_spec(msgpack.packb({"root": ROOT, "blob": PART})).blob == BlobPart(
        "cd" * 32, 100, 20, 40
    )
    with pytest.raises(BadSpec):
        read_spec(msgpack.packb({**FIELDS, **changes}))


def test_too_many_tokens_are_clamped() -> None:
    most = defaults.ROW_TOKENS
    assert read_spec(msgpack.packb({**FIELDS, "tokens": 2**40})).options.max_tokens == most
    assert read_spec(msgpack.packb({**FIELDS, "tokens": -5})).options.max_tokens == 1


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb({"lines": ROW, "root": ROOT}),
        msgpack.packb({"root": ROOT.upper(), "lines": ROW}),
        msgpack.packb([{"root": ROOT, "lines": ROW}]),
        b"\x82\xa4root\xd9\x40" + b"ab" * 31,
    ],
)
def test_a_spec_that_does_not_begin_with_its_root_is_refused(packed: bytes) -> None:
    with pytest.raises(BadSpec):
        read_spec(packed)


@pytest.mark.parametrize("fields", [2, 16, 1_300])
def test_a_spec_may_have_as_many_fields_as_fit(fields: int) -> None:
    more = {f"{number}": 0 for number in range(fields - 2)}
    packed = msgpack.packb({**FIELDS, **more})
    assert len(packed) <= state_defaults.JOB_SPEC_BYTES
    assert read_spec(packed).root == ROOT


def test_a_spec_that_is_too_large_for_a_feed_is_refused() -> None:
    with pytest.raises(BadSpec):
        pack_spec(JobSpec(ROOT, b"x" * state_defaults.JOB_SPEC_BYTES))
