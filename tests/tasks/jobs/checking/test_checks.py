"""Which rows are recomputed, over which chains, and what follows for the claimant."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio

from shoal.state.membership.record import Capacity, MemberRecord, ShardRecord
from shoal.state.views.jobs import Job, new_claim
from shoal.tasks.errors import NoRoute, SessionError
from shoal.tasks.inference.generation import Apart
from shoal.tasks.jobs.checking import defaults
from shoal.tasks.jobs.checking.checks import ResultChecks, Verdict
from shoal.tasks.jobs.checking.trust import Trust
from shoal.tasks.jobs.crew import IdleTime
from shoal.tasks.jobs.kinds import evaluate
from shoal.tasks.jobs.kinds.evaluate import Evaluate
from shoal.tasks.jobs.kinds.rows import output_line
from shoal.tasks.jobs.models import JobModels
from shoal.tasks.jobs.results import JobOutcome, failed
from shoal.tasks.jobs.runner import Workshop
from shoal.tasks.jobs.spec import JobSpec, pack_spec
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId

from ..fake_state import ME, FakeHost, FakeShelf, FakeState

ROOT = "ab" * 32
WORKER, ONE, TWO, FRIEND = [Identity.from_seed(bytes([n]) * 32).peer for n in (11, 12, 13, 14)]
pytestmark = pytest.mark.trio


def member(peer: PeerId) -> MemberRecord:
    shard = ShardRecord(ROOT, True, 0, 6, True, "float32", 4096)
    return MemberRecord(
        peer=peer, seq=0, version="1", capacity=Capacity(2, 2**30, True), shards=(shard,)
    )


@dataclass
class Swarm:
    """Nodes that each serve the whole model. `lies` has those that compute something else."""

    serving: list[PeerId]
    lies: set[PeerId] = field(default_factory=set)
    busy: int = 0  # further requests that are refused
    asked: list[PeerId] = field(default_factory=list)

    async def loss(
        self, root: str, adapter: str, given: str, text: str, apart: Apart | None, job: str
    ) -> tuple[float, int]:
        await trio.sleep(0.1)
        assert apart is not None and root == ROOT and job
        if self.busy:
            self.busy -= 1
            raise SessionError("busy", "not now")
        found = next((each for each in self.serving if each not in apart.without), None)
        if found is None:
            raise NoRoute("no other chain")
        apart.used.add(found)
        self.asked.append(found)
        return (9.0 if found in self.lies else 1.0) * len(text), len(text)


class Lot(FakeHost):
    """Host whose entropy is these numbers of 64 bits."""

    def __init__(self, numbers: Iterable[int] | None = None) -> None:
        super().__init__()
        golden = (int(count * 0.61803 % 1.0 * 2**64) for count in range(10**9))
        self.numbers = iter(golden if numbers is None else numbers)

    def entropy(self, size: int) -> bytes:
        return (next(self.numbers) % 2**64).to_bytes(8)[-size:]


class Desk:
    """Checks of this node, with a job of some rows that a worker did."""

    def __init__(
        self, nursery: trio.Nursery, swarm: Swarm, rows: int = 1, lot: Lot | None = None
    ) -> None:
        host, self.state = cast(Host, lot or Lot()), FakeState(nursery)
        self.swarm, self.rows = swarm, rows
        members = lambda: {peer: member(peer) for peer in (WORKER, *swarm.serving)}  # noqa: E731
        models = JobModels(members, trio.current_time, works_for=lambda root: True)
        shop = Workshop(
            cast(Any, swarm), models, cast(Any, FakeShelf()), IdleTime(lambda: 0), members
        )
        self.trust = Trust(host, self.state.state, ME)
        self.checks = ResultChecks(host, ME, shop, {"evaluate": Evaluate()}, self.trust)
        lines = b"".join(json.dumps({"text": "t" * (n + 2)}).encode() + b"\n" for n in range(rows))
        spec = pack_spec(JobSpec(ROOT, lines, last=rows))
        self.job = Job("cd" * 32, ME, "evaluate", spec, rows=rows)

    async def judge(self, factor: float = 1.0, claimant: PeerId = WORKER) -> Verdict:
        """Judge a result with the right losses times `factor`."""
        rows = [_row(factor * (n + 2), n + 2) for n in range(self.rows)]
        text = b"".join(output_line(n, row) for n, row in enumerate(rows, 1)).decode()
        claim = new_claim(claimant, self.job.id, 1, done=True)
        return (await self.checks.judge(self.job, claim, JobOutcome(text=text))).verdict


def _row(loss: float, tokens: int) -> dict[str, Any]:
    fields = evaluate.output_of(Evaluate().read(b'{"text": "t"}'), [(loss, tokens)])
    return dict(fields)


@pytest.fixture
def every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "PROBATION_SHARE", 1.0)


async def test_a_chain_without_the_claimant_computes(
    autojump_clock: object, every_row: None
) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([WORKER, ONE, TWO]))
        assert await desk.judge() is Verdict.RIGHT and desk.swarm.asked == [ONE]
        assert desk.trust.figures[WORKER].rows == 1


async def test_two_chains_without_a_common_node_decide(
    autojump_clock: object, every_row: None
) -> None:
    """A node that computes wrongly cannot make liars of others."""
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([ONE, TWO], lies={ONE}))
        assert await desk.judge() is Verdict.RIGHT and desk.swarm.asked == [ONE, TWO]
        assert not desk.trust.is_liar(WORKER)
        desk = Desk(nursery, Swarm([ONE, TWO]))
        assert await desk.judge(2.0) is Verdict.LIE and desk.trust.is_liar(WORKER)
        desk = Desk(nursery, Swarm([ONE]))
        assert await desk.judge(2.0) is Verdict.WRONG and not desk.trust.is_liar(WORKER)
        desk = Desk(nursery, Swarm([ME]))
        assert await desk.judge(2.0) is Verdict.LIE and desk.trust.is_liar(WORKER)


async def test_what_nobody_else_can_compute_is_believed(
    autojump_clock: object, every_row: None
) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([WORKER]))
        assert await desk.judge(2.0) is Verdict.UNCHECKED and desk.swarm.asked == []
        desk = Desk(nursery, Swarm([ONE, TWO], busy=2))
        assert await desk.judge(2.0) is Verdict.LIE
        desk = Desk(nursery, Swarm([ONE, TWO], busy=1000))
        assert await desk.judge(2.0) is Verdict.UNCHECKED
        assert await desk.judge(2.0, ME) is Verdict.UNCHECKED
        claim, outcome = new_claim(WORKER, desk.job.id, 1, done=True), failed("worker-crashed", "")
        assert (await desk.checks.judge(desk.job, claim, outcome)).verdict is Verdict.UNCHECKED


async def test_an_error_for_a_possible_row_is_refused(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([ONE, TWO]), rows=3)
        claim, outcome = new_claim(WORKER, desk.job.id, 1, done=True), failed("bad-spec", "")
        assert (await desk.checks.judge(desk.job, claim, outcome)).verdict is Verdict.WRONG
        assert not desk.trust.is_liar(WORKER)


async def test_a_known_claimant_is_checked_less(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([ONE, TWO]), rows=4)
        while desk.trust.share(WORKER) > defaults.SHARE:
            await desk.judge()
        assert desk.trust.figures[WORKER].rows >= defaults.PROBATION
        before = desk.checks.rows
        for _ in range(200):
            await desk.judge()
        assert 12 <= desk.checks.rows - before <= 20, "2 % of 800 rows"
        # A lie about every row is found after about 50 rows.
        pieces = 1
        while await desk.judge(2.0) is not Verdict.LIE:
            pieces += 1
        assert pieces <= 20 and desk.trust.is_liar(WORKER)
        assert desk.trust.weight(WORKER) == 1.0, "what it has given before counts for nothing"


async def test_rows_are_chosen_by_this_nodes_entropy() -> None:
    """A worker that could predict them would compute no others."""
    async with trio.open_nursery() as nursery:
        lot = Lot(count * 0x9E3779B97F4A7C15 for count in range(1000))
        checks = [Desk(nursery, Swarm([ONE]), lot=lot).checks for _ in range(2)]
        found = [each.chosen(64, 0.5) for each in checks]
        assert found[0] != found[1] and all(len(rows) == defaults.ROWS_OF_ONE for rows in found)


async def test_credit_comes_from_checks_and_survives_a_restart(
    autojump_clock: object, every_row: None
) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([ONE, TWO]))
        desk.trust.note_right(WORKER, 1, 3600.0)
        assert desk.trust.weight(WORKER) == 2.0 and desk.trust.weight(FRIEND) == 1.0
        # Two identities vouch for each other, without a check of this node.
        for one, other in ((FRIEND, TWO), (TWO, FRIEND)):
            desk.state.hear(one, "usage", f"checked/{other}", {"rows": 99, "ms": 10**9})
        await trio.sleep(2 * defaults.CREDIT_AGE)
        assert desk.trust.weight(FRIEND) == desk.trust.weight(TWO) == 1.0
        # A member that was checked passes half of its credit on.
        desk.state.hear(WORKER, "usage", f"checked/{FRIEND}", {"rows": 99, "ms": 10**9})
        await trio.sleep(2 * defaults.CREDIT_AGE)
        assert desk.trust.weight(WORKER) == desk.trust.weight(FRIEND) < 2.0
        desk.trust.write()
        again = Trust(cast(Host, FakeHost()), desk.state.state, ME)
        again.load()
        assert again.weight(WORKER) == desk.trust.weight(WORKER) > 1.0
        # Accusations by others cost checks, and nothing else.
        desk.state.hear(FRIEND, "usage", f"checked/{WORKER}", {"wrong": 1, "at": 10**9})
        assert desk.trust.share(WORKER) == 1.0 and not desk.trust.is_liar(WORKER)


async def test_figures_are_bounded_and_lies_are_remembered_longest(
    autojump_clock: object,
) -> None:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, Swarm([ONE]))
        desk.trust.note_lie(WORKER)
        for number in range(defaults.PEERS + 20):
            peer = Identity.from_seed(number.to_bytes(32)).peer
            desk.trust.note_right(peer, 1, float(number))
        assert len(desk.trust.figures) == defaults.PEERS and desk.trust.is_liar(WORKER)
        desk.trust.write()
        assert len(desk.state.keys("usage")) == defaults.PEERS
        assert desk.trust.liars() == (WORKER,)
