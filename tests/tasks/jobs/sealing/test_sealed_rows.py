"""Sealed jobs at the worker that does them."""

from dataclasses import replace

import pytest

from shoal.state.views.jobs import Job
from shoal.tasks.jobs.errors import Unsealable
from shoal.tasks.jobs.spec import JobSpec
from shoal.tasks.jobs.submitting import row_of
from tests.tasks.jobs.sealing.keys import AUTHOR, PEOPLE, ROOT, piece, seals, with_spec
from tests.tasks.jobs.test_runner import Node, rows_of

pytestmark = pytest.mark.trio
WORKER = PEOPLE[2]
ROWS = b"".join(row_of("generate", f"secret {n}") + b"\n" for n in range(2))
SPEC = JobSpec(ROOT, ROWS, last=2, name="tiny", abstract="secret 0")


def job(*secrets: int) -> Job:
    author = seals(AUTHOR, *secrets)
    secret = author.newest() if secrets else None
    return with_spec(piece(), author.with_seal(piece(), SPEC, secret))


def node_of(*secrets: int) -> Node:
    """Return a node that knows these secrets of the group."""
    return Node(seals=seals(WORKER, *secrets))


async def test_a_member_does_sealed_rows(autojump_clock: object) -> None:
    node = node_of(7)
    assert node.runner.able(job(7)) and node.runner.seconds(job(7)) > 0
    outcome = await node.run(job(7))
    assert [row["text"] for row in rows_of(outcome)] == ["SECRET 0", "SECRET 1"]


async def test_a_node_without_the_key_leaves_the_job_to_others(autojump_clock: object) -> None:
    for known in ((), (8,)):
        node = node_of(*known)
        assert not node.runner.able(job(7)) and node.runner.able(job())
        with pytest.raises(Unsealable) as raised:
            await node.run(job(7))
        assert raised.value.code == "no-key" and not node.gateway.requests
    node = Node()
    assert not node.runner.able(job(7)), "without seals neither"


async def test_rows_of_another_piece_are_an_error(autojump_clock: object) -> None:
    node = node_of(7)
    outcome = await node.run(replace(piece(1), spec=job(7).spec))
    assert outcome.error == "bad-seal" and "piece 2 of 3" in outcome.message


async def test_sealed_work_in_progress_is_in_no_blob(autojump_clock: object) -> None:
    """Other nodes could read it there. Rows that are not sealed show their progress."""
    for sealed in (False, True):
        node = node_of(7)
        node.shop.places.set_limit(1)
        lines = b"".join(row_of("generate", f"row {n}") + b"\n" for n in range(60))
        asked, many = replace(piece(), rows=60, lease=1.0), JobSpec(ROOT, lines, last=60)
        mine = seals(AUTHOR, 7)
        chosen = mine.with_seal(asked, many, mine.newest()) if sealed else many
        await node.run(with_spec(asked, chosen))
        assert bool(node.kept) is not sealed and node.steps[-1] == 60
