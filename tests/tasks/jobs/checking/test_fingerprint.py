"""Fingerprints of answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.jobs.checking.fingerprint import (
    FIELD,
    pack_fingerprint,
    read_fingerprint,
    without_fingerprints,
)
from shoal.tasks.jobs.errors import BadOutcome
from shoal.tasks.jobs.kinds.kind import Fields
from shoal.tasks.jobs.kinds.rows import output_line

TOKENS = st.lists(st.tuples(st.integers(0, 2**24 - 1), st.floats(-100.0, 0.0)), max_size=40)


@given(TOKENS)
def test_it_is_read_as_it_was_written(made: list[tuple[int, float]]) -> None:
    tokens, logprobs = [token for token, _ in made], [logprob for _, logprob in made]
    known = read_fingerprint(pack_fingerprint(tokens, logprobs), len(tokens))
    assert list(known.tokens) == tokens and known.distance(logprobs) == 0.0


def test_the_distance_is_the_mean_in_nats() -> None:
    known = read_fingerprint(pack_fingerprint([1, 2], [-1.0, -2.0]), 2)
    assert known.distance([-1.5, -2.0]) == 0.25


@given(st.text(max_size=64) | st.binary(max_size=64).map(lambda data: data.decode("latin1")))
def test_anything_else_is_refused_or_bounded(text: str) -> None:
    try:
        known = read_fingerprint(text, 8)
    except BadOutcome:
        return
    assert len(known.tokens) <= 8 and all(token < 2**28 for token in known.tokens)


@pytest.mark.parametrize("text", ["gICAgICAgAE=", "AQ==", "*", "gA==", "AAEAAQ=="])
def test_malformed_ones_are_refused(text: str) -> None:
    with pytest.raises(BadOutcome):
        read_fingerprint(text, 1)


def test_the_author_gets_the_output_without_them() -> None:
    inside = ', "fingerprint": "AA=="}'
    rows: list[Fields] = [{"text": f"a{inside}\n", "tokens": 1}, {"embedding": [0.5]}]
    data = b"".join(output_line(1, {**row, FIELD: "AQgC"}) for row in rows)
    plain = without_fingerprints(data)
    assert plain == b"".join(output_line(1, row) for row in rows)
    assert json.loads(plain.splitlines()[0])["text"].endswith("\n")
