"""Tests of the preparation of jobs: broken rows, and the division into pieces."""

import json
from collections.abc import Sequence

import pytest

from shoal.state import defaults as state_defaults
from shoal.tasks.costs.shardcosts import NO_COSTS, ShardCosts
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import JobError
from shoal.tasks.jobs.kinds.kind import BadRow, RowSize
from shoal.tasks.jobs.kinds.rows import lines_of
from shoal.tasks.jobs.kinds.table import KINDS
from shoal.tasks.jobs.spec import JobSpec, RowOptions, pack_spec
from shoal.tasks.jobs.speed import JobSpeed, chain_costs, row_seconds
from shoal.tasks.jobs.submitting import Piece, Prepared, divide, prepare, row_of
from tests.tasks.jobs.test_models import PEERS, ROOT, record

SPEC = JobSpec(ROOT, b"x", options=RowOptions(max_tokens=200))


def rows(count: int, size: int = 5) -> bytes:
    return b"".join(row_of("generate", "x" * size) + b"\n" for _ in range(count))


def prepared(data: bytes, kind: str = "generate", costs: ShardCosts = NO_COSTS) -> Prepared:
    return prepare(data, KINDS[kind], SPEC, JobSpeed(), costs)


def check(pieces: Sequence[Piece], data: bytes) -> None:
    """Check that each row is in exactly one piece, in order, and that the limits are kept."""
    found = [
        line.number
        for piece in pieces
        for line in lines_of(data[piece.start : piece.stop], piece.first)
    ]
    assert found == [line.number for line in lines_of(data)]
    for piece in pieces:
        lines = list(lines_of(data[piece.start : piece.stop], piece.first))
        assert len(lines) == piece.rows <= state_defaults.JOB_ROWS
        assert (lines[0].number, lines[-1].number) == (piece.first, piece.last)
        assert piece.stop - piece.start <= defaults.PIECE_BYTES
    assert len(pieces) <= state_defaults.JOB_PARTS


@pytest.mark.parametrize("seconds", [0.0, 0.1, 3.0, 11.0, 500.0])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 16_384])
def test_rows_are_divided_by_their_time(count: int, seconds: float) -> None:
    data = b"\n" + rows(count) + b"\n\n" + rows(0)
    pieces = divide(list(lines_of(data)), lambda line: seconds)
    check(pieces, data)
    ideal = defaults.PIECE_TIME / seconds if seconds else 1e9
    wanted = min(max(1, int(ideal)), state_defaults.JOB_ROWS, count)
    if count <= wanted * state_defaults.JOB_PARTS:
        assert pieces[0].rows == pytest.approx(wanted, abs=1)


def test_long_rows_are_in_small_pieces() -> None:
    data = rows(100, 60_000)
    pieces = divide(list(lines_of(data)), lambda line: 0.0)
    check(pieces, data)
    assert len(pieces) > 5


def test_uneven_rows_are_divided_evenly_by_time() -> None:
    data = rows(400)
    pieces = divide(list(lines_of(data)), lambda line: 9.0 if line.number % 10 == 0 else 0.5)
    check(pieces, data)
    assert all(piece.rows <= 15 for piece in pieces)


def test_too_many_rows_are_an_error() -> None:
    with pytest.raises(JobError) as raised:
        divide(list(lines_of(rows(16_385))), lambda line: 0.0)
    assert raised.value.code == "too-many-rows" and "split" in (raised.value.hint or "")


def test_a_few_rows_are_in_the_spec_and_many_in_a_blob() -> None:
    few, many = prepared(rows(40)), prepared(rows(1000))
    assert few.is_inline and few.rows == 40
    assert not many.is_inline and many.rows == 1000
    for found, blob in ((few, ""), (many, "cd" * 32)):
        specs = found.specs(JobSpec(ROOT), blob)
        assert sum(count for _, count in specs) == found.rows
        for spec, count in specs:
            packed = pack_spec(spec)
            assert (
                len(packed) < state_defaults.JOB_SPEC_BYTES and count == spec.last - spec.first + 1
            )


def test_broken_rows_are_named_and_stay_in_their_place() -> None:
    data = b'{"prompt": "one"}\nrubbish\n\n{"prompt": 5}\n' + rows(1, 70_000) + b'{"prompt": "two"}'
    found = prepared(data)
    assert [line.number for line in found.broken] == [2, 4, 5]
    assert found.broken[2].message == "longer than 64 KiB" and found.abstract == "one"
    kept = list(lines_of(found.data))
    assert [line.number for line in kept] == [1, 2, 4, 5, 6] and len(found.data) < 200
    assert json.loads(kept[-1].data) == {"prompt": "two"}
    assert found.rows == 5 and found.is_inline


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "no-rows"),
        (b"\n \n", "no-rows"),
        (b"plain text\nmore\n", "bad-rows"),
        (b'{"text": "of another kind"}', "bad-rows"),
        (b'{"prompt": ""}', "bad-rows"),
        (b'{"messages": []}', "bad-rows"),
        (b'{"prompt": "a", "messages": [{"role": "user", "content": "x"}]}', "bad-rows"),
        (b'{"prompt": "a", "max_tokens": 0}', "bad-rows"),
        (b"[" * 60_000, "bad-rows"),
        (b'{"prompt": "\xff"}', "bad-rows"),
    ],
)
def test_a_file_without_valid_rows_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(JobError) as raised:
        prepared(data)
    assert raised.value.code == code and "each line is an object" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"prompt": ""}', "`prompt` is empty"),
        (b'{"messages": []}', "`messages` is empty"),
        (b'{"prompt": 5}', "`prompt` is not a text"),
        (b'{"max_tokens": 0, "prompt": "a"}', "`max_tokens` is not a whole number from 1 to "),
        (b'{"prompt": "a", "seed": "x"}', "`seed` is not a whole number from 0 to 2**62"),
        (b'{"messages": [{"role": "user"}]}', "a list of 1 to 64 messages, each with `role` and"),
        (b'{"text": "a"}', "it has neither `prompt` nor `messages`"),
        (b'{"prompt": "a", "messages": [{"role": "a", "content": "b"}]}', "it has both `prompt`"),
        (b"[1]", 'not an object, such as {"prompt": "…"}'),
        (b'{"prompt": ', "not JSON: expecting value at character 12"),
        (b'{"prompt": "\xff"}', "not UTF-8 text"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "not JSON: a number is too long"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"prompt": "' + b"x" * 70_000 + b'"}', "longer than 64 KiB"),
        (b'{"row": "too long"}', "longer than 64 KiB"),
    ],
)
def test_a_broken_row_is_explained_in_plain_words(line: bytes, why: str) -> None:
    with pytest.raises(BadRow) as raised:
        KINDS["generate"].read(line)
    assert why in raised.value.message and "str" not in raised.value.message
    assert (raised.value.code == "row-too-long") == ("KiB" in why)


def test_a_text_without_its_field_is_explained() -> None:
    for line, why in ((b"{}", "`text` is missing"), (b'{"text": ""}', "`text` is empty")):
        with pytest.raises(BadRow) as raised:
            KINDS["embed"].read(line)
        assert raised.value.message == why


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "INPUT_BYTES", 100)
    with pytest.raises(JobError) as raised:
        prepared(rows(10))
    assert raised.value.code == "input-too-large" and "split" in (raised.value.hint or "")


def test_a_slow_model_gets_smaller_pieces() -> None:
    slow = prepared(rows(1000), costs=ShardCosts(2.0, 0.1))
    fast = prepared(rows(1000), costs=ShardCosts(0.001, 0.0001))
    assert len(slow.pieces) > 4 * len(fast.pieces)
    check(slow.pieces, slow.data)


def test_predictions_grow_with_the_work() -> None:
    costs = ShardCosts(0.1, 0.01, 1e-6)
    sizes = [RowSize(3), RowSize(300), RowSize(300, 10), RowSize(300, 100), RowSize(3000, 100)]
    times = [row_seconds(costs, size) for size in sizes]
    assert times == sorted(set(times))


def test_the_cheapest_chain_is_predicted() -> None:
    first, second = record(PEERS[0], (0, 3)), record(PEERS[1], (3, 6))
    assert chain_costs({PEERS[0]: first}, ROOT) == NO_COSTS
    assert chain_costs({PEERS[0]: first, PEERS[1]: second}, ROOT) == NO_COSTS, "they are unknown"
