"""Tests of outcomes in claims, which are untrusted."""

from typing import Any

import msgpack
import pytest

from shoal.state.defaults import JOB_RESULT_BYTES
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import BadOutcome
from shoal.tasks.jobs.results import JobOutcome, failed, pack_outcome, read_outcome

ROOT = "ab" * 32


@pytest.mark.parametrize(
    "outcome",
    [
        JobOutcome(text="so be it\n\x1b", size=10, tokens=3, reason="stop"),
        JobOutcome(blob=ROOT, size=5000, tokens=900, reason="length"),
        JobOutcome(error="bad-spec", message="nothing is asked"),
        JobOutcome(),
    ],
)
def test_outcomes_survive_a_round_trip(outcome: JobOutcome) -> None:
    assert read_outcome(pack_outcome(outcome)) == outcome


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": "no bytes"},
        {"text": b"\xff"},
        {"text": bytes(defaults.RESULT_BYTES + 1)},
        {"blob": "ab", "size": 1},
        {"blob": ROOT},
        {"blob": ROOT, "size": -1.0},
        {"blob": ROOT, "size": defaults.RESULT_BYTES + 1},
        {"error": "x" * 33},
        {"error": "e", "message": "\x1b[2J"},
        {"error": 5},
        {"text": b"", "tokens": "many"},
    ],
)
def test_invalid_outcomes_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadOutcome):
        read_outcome(msgpack.packb(fields))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", msgpack.packb({1: 2}), b"\xdf\xff\xff\xff\xff"]
)
def test_undecodable_outcomes_are_refused(data: bytes) -> None:
    with pytest.raises(BadOutcome):
        read_outcome(data)


def test_an_error_always_fits_a_claim() -> None:
    packed = pack_outcome(failed("c" * 500, "\x1bé" * 5000))
    assert len(packed) < defaults.INLINE_BYTES < JOB_RESULT_BYTES
    assert read_outcome(packed).error == "c" * 32
    assert "\x1b" not in read_outcome(packed).message
    assert failed("", "").error == "failed"
