"""Sealed specs, rows and outputs: the nodes that can open them, and the only place of each."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.state.views.jobs import Job
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import BadOutcome, BadSpec, JobError, Unsealable
from shoal.tasks.jobs.results import JobOutcome, failed, pack_outcome
from shoal.tasks.jobs.sealing.drafts import UNKNOWN_ROOT, sealed_draft
from shoal.tasks.jobs.sealing.envelopes import seal_for
from shoal.tasks.jobs.sealing.seals import LONGEST, output_place, rows_of
from shoal.tasks.jobs.spec import (
    BlobPart,
    JobSpec,
    RowOptions,
    SpecSeal,
    pack_spec,
    read_spec,
    seal_of,
)
from shoal.tasks.jobs.wholes import NewJob
from tests.tasks.jobs.fake_state import FakeShelf
from tests.tasks.jobs.sealing.keys import AUTHOR, ME, PEOPLE, ROOT, WORKER, piece, seals, with_spec

SECRET_TEXT = b"the treasure is under the oak"
SPEC = JobSpec(
    ROOT, b'{"prompt": "' + SECRET_TEXT + b'"}\n', first=3, last=4, name="tiny",
    abstract="the treasure", options=RowOptions(stop=("oak",), max_tokens=9),
)  # fmt: skip


def sealed_spec() -> JobSpec:
    mine = seals(AUTHOR, 7)
    return mine.with_seal(piece(), SPEC, mine.newest())


def code(do: Callable[[], object]) -> str:
    with pytest.raises(JobError) as raised:
        do()
    return raised.value.code


def test_a_member_reads_the_spec_and_a_stranger_sees_its_size() -> None:
    packed = pack_spec(sealed_spec())
    assert b"treasure" not in packed and b"oak" not in packed and b"tiny" not in packed
    shown = read_spec(packed)
    assert (shown.lines, shown.name, shown.abstract, shown.options.stop) == (b"", "", "", ())
    assert shown.options.max_tokens == 9
    opened = seals(WORKER, 9, 7).opened(piece(), shown)
    assert replace(opened, seal=None) == SPEC
    assert seals(WORKER, 7).has_key(packed)
    for stranger in (seals(WORKER, 8), seals(WORKER)):
        assert not stranger.has_key(packed)
        assert code(lambda: stranger.opened(piece(), shown)) == "no-key"  # noqa: B023


def test_a_removed_member_knows_only_older_secrets() -> None:
    """The author seals under the newest one, which the removed member was not given."""
    removed, author = seals(WORKER, 6), seals(AUTHOR, 7, 6)
    before = seals(AUTHOR, 6)
    old = before.with_seal(piece(), SPEC, before.newest())
    assert removed.opened(piece(), old).lines == SPEC.lines
    new = author.with_seal(piece(), SPEC, author.newest())
    assert code(lambda: removed.opened(piece(), new)) == "no-key"


@pytest.mark.parametrize(
    "other",
    [
        piece(1),
        piece(nonce=b"m" * 14),
        piece(author=ME),
        replace(piece(), rows=3),
        replace(piece(), parts=4),
        replace(piece(), of="cd" * 32),
    ],
)
def test_a_spec_opens_in_its_place_only(other: Job) -> None:
    reader = seals(WORKER, 7)
    assert code(lambda: reader.opened(other, sealed_spec())) == "bad-seal"


@pytest.mark.parametrize("lines", [(1, 4), (3, 5)])
def test_a_spec_opens_for_its_rows_only(lines: tuple[int, int]) -> None:
    first, last = lines
    other = replace(sealed_spec(), first=first, last=last)
    assert code(lambda: seals(WORKER, 7).opened(piece(), other)) == "bad-seal"


def test_the_error_names_the_piece() -> None:
    with pytest.raises(Unsealable) as raised:
        seals(WORKER, 7).opened(piece(1), sealed_spec())
    assert f"piece 2 of 3 of job {piece().id[:16]}" in raised.value.message


@pytest.mark.trio
async def test_rows_in_a_blob_cannot_be_swapped(autojump_clock: object) -> None:
    mine, shelf = seals(AUTHOR, 7), FakeShelf()
    rows = [bytes([65 + n]) * 1000 for n in range(3)]
    specs = [
        (JobSpec(ROOT, blob=BlobPart(UNKNOWN_ROOT, 3000, 1000 * n, 1000 * n + 1000)), 2)
        for n in range(3)
    ]
    new = NewJob("generate", specs, nonce=b"n" * 14)
    draft = sealed_draft(mine, AUTHOR.peer, new, b"".join(rows), mine.newest())
    assert [job.id for job in draft.jobs] == [piece(n).id for n in range(3)]
    assert not any(row[:9] in draft.data for row in rows)
    pieces = [spec for spec, _ in draft.sealed(await shelf.put(draft.data)).pieces]
    reader = seals(WORKER, 7)
    opened = [reader.opened(piece(n), read_spec(pack_spec(pieces[n]))) for n in range(3)]
    assert [await rows_of(piece(n), opened[n], shelf, reader) for n in range(3)] == rows
    wrong = replace(opened[0], blob=opened[1].blob)
    with pytest.raises(Unsealable) as raised:
        await rows_of(piece(0), wrong, shelf, reader)
    assert raised.value.code == "bad-seal" and "piece 1 of 3" in raised.value.message


def test_outputs_only_leave_the_inputs_as_they_are() -> None:
    mine = seals(AUTHOR)
    spec = mine.with_seal(piece(), SPEC, None)
    packed = pack_spec(spec)
    assert SECRET_TEXT in packed and seals(WORKER).has_key(packed)
    assert replace(seals(WORKER).opened(piece(), read_spec(packed)), seal=None) == SPEC
    assert code(mine.newest) == "no-group"


def test_only_the_author_opens_an_output_and_after_a_restart_too() -> None:
    job = with_spec(piece(1), seals(AUTHOR).with_seal(piece(1), SPEC, None))
    said = JobOutcome(text="in the well\n", tokens=4, reason="stop", size=12)
    sealed = seals(WORKER).seal_outcome(job, said)
    assert sealed is not None and b"well" not in sealed and len(sealed) < 400
    assert seals(AUTHOR).open_outcome(job, WORKER.peer, sealed) == said
    for other in (ME, WORKER, PEOPLE[3]):
        assert code(lambda: seals(other).open_outcome(job, WORKER.peer, sealed)) == "bad-seal"  # noqa: B023


def test_an_output_opens_in_its_place_only() -> None:
    """It cannot be passed off as that of another node, piece, job or spec."""
    mine = seals(AUTHOR)
    jobs = [with_spec(piece(n), mine.with_seal(piece(n), SPEC, None)) for n in range(3)]
    sealed = seals(WORKER).seal_outcome(jobs[0], JobOutcome(text="x"))
    assert sealed is not None
    changed = with_spec(jobs[0], replace(read_spec(jobs[0].spec), last=5))
    again = piece(nonce=b"m" * 14)
    other = with_spec(again, mine.with_seal(again, SPEC, None))
    for job in (jobs[1], changed, other, replace(jobs[0], rows=1)):
        assert code(lambda: mine.open_outcome(job, WORKER.peer, sealed)) == "bad-seal"  # noqa: B023
    assert code(lambda: mine.open_outcome(jobs[0], ME.peer, sealed)) == "bad-seal"
    for broken in (b"", sealed[:31], sealed[:-1], sealed[:40] + b"!" + sealed[41:]):
        assert code(lambda: mine.open_outcome(jobs[0], WORKER.peer, broken)) == "bad-seal"  # noqa: B023


def test_errors_are_sealed_too() -> None:
    job = with_spec(piece(), seals(AUTHOR).with_seal(piece(), SPEC, None))
    sealed = seals(WORKER).seal_outcome(job, failed("bad-spec", "the oak is no model"))
    assert sealed is not None and b"oak" not in sealed
    assert seals(AUTHOR).open_outcome(job, WORKER.peer, sealed).error == "bad-spec"


@pytest.mark.parametrize(
    "inner",
    [b"", b"\xc1", pack_outcome(JobOutcome(blob=ROOT, size=9)),
     pack_outcome(JobOutcome(sealed=b"x")), pack_outcome(failed("bad-seal", "not mine"))],
)  # fmt: skip
def test_what_a_worker_seals_is_checked(inner: bytes) -> None:
    """`bad-seal` as the result is the claimant's fault: the author's rows can be opened."""
    mine = seals(AUTHOR)
    job = with_spec(piece(), mine.with_seal(piece(), SPEC, None))
    keys = seal_of(job.spec)
    assert keys is not None
    sealed = seal_for(keys.box, inner, output_place(job, WORKER.peer), b"s" * 32, 4096)
    with pytest.raises(BadOutcome):
        mine.open_outcome(job, WORKER.peer, sealed)


def test_a_long_output_fits_when_it_is_sealed() -> None:
    job = with_spec(piece(), seals(AUTHOR).with_seal(piece(), SPEC, None))
    for size in (LONGEST - 100, defaults.RESULT_BYTES):
        sealed = seals(WORKER).seal_outcome(job, JobOutcome(text="x" * size, size=size))
        assert sealed is not None and len(sealed) <= defaults.RESULT_BYTES
        opened = seals(AUTHOR).open_outcome(job, WORKER.peer, sealed)
        assert opened.error == ("too-large" if size > LONGEST else "")


def test_a_job_without_a_seal_has_no_sealed_output() -> None:
    assert seals(WORKER).seal_outcome(with_spec(piece(), SPEC), JobOutcome(text="x")) is None
    assert seals(WORKER).seal_outcome(piece(), JobOutcome(text="x")) is None
    low = with_spec(piece(), replace(SPEC, seal=SpecSeal(bytes(32))))
    assert seals(WORKER).seal_outcome(low, JobOutcome(text="x")) is None, "no key at all"


@pytest.mark.parametrize(
    "seal",
    [SpecSeal(b"b" * 32, b"m" * 8), SpecSeal(b"b" * 32, b"", b"h"), SpecSeal(b"b" * 32, b"m", b"h"),
     SpecSeal(b"b" * 31), SpecSeal(b"b" * 32, b"m" * 8, b"h")],
)  # fmt: skip
def test_seals_that_contradict_themselves_are_refused(seal: SpecSeal) -> None:
    """The last one would show the rows that it also seals."""
    with pytest.raises(BadSpec):
        read_spec(pack_spec(replace(SPEC, seal=seal)))
