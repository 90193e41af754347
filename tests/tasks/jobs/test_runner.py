"""Tests of the work on a piece: its rows, refusals by stages, and impossible rows."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio

from shoal.state import defaults as state_defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job, Jobs, job_fact, job_id, new_claim
from shoal.state.views.members import Members
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.errors import NoRoute, PromptTooLong, SessionError, TextError
from shoal.tasks.inference.conversation.recomputing import Recomputed, Ties
from shoal.tasks.inference.generation import Apart, GatewayEvent, GenerateRequest, Routed, Summary
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.checking.fingerprint import read_fingerprint
from shoal.tasks.jobs.claimant import Claimant, JobHandling
from shoal.tasks.jobs.crew import Crew, IdleTime
from shoal.tasks.jobs.errors import BadOutcome
from shoal.tasks.jobs.kinds.rows import check_output
from shoal.tasks.jobs.kinds.table import KINDS
from shoal.tasks.jobs.models import JobModels
from shoal.tasks.jobs.results import JobOutcome
from shoal.tasks.jobs.runner import RowRunner, Workshop
from shoal.tasks.jobs.sealing.seals import JobSeals
from shoal.tasks.jobs.spec import BlobPart, JobSpec, RowOptions, pack_spec
from shoal.tasks.jobs.submitting import row_of
from shoal.transport.identity import Identity
from tests.tasks.jobs.fake_state import FakeShelf
from tests.tasks.jobs.test_models import AUTHOR, PEERS, ROOT, SERVER, record

from ...cost import cost

pytestmark = pytest.mark.trio
FULL = SessionError("no-memory", "no room")


class Gateway:
    """Gateway that answers after a second, and has room for some requests at once."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.errors: dict[str, Exception] = {}  # by prompt, raised each time
        self.room = 1000
        self.lost_after = 1000  # requests
        self.open = self.most = 0
        self.opening: float | None = None  # seconds until a chain is open, None: never told
        self.refused: set[str] = set()  # prompts for which no chain is opened
        self._opening = self.most_opening = 0  # chains at once

    async def generate(
        self, request: GenerateRequest, emit: Callable[[GatewayEvent], Awaitable[None]]
    ) -> Summary:
        self.requests.append(request)
        if request.prompt in self.refused:
            raise PromptTooLong(2000, 1024)
        if self.opening is not None:
            self._opening += 1
            self.most_opening = max(self.most_opening, self._opening)
            await trio.sleep(self.opening)
            self._opening -= 1
            await emit(Routed(()))
        await self._compute(request.prompt or "")
        said = (request.prompt or "").upper()
        return Summary("stop", 3, 2, 0.1, 10.0, 0.0, said, (1, 2), (-0.5, -0.1))

    async def embed_one(self, request: GenerateRequest) -> tuple[Sequence[float], int]:
        self.requests.append(request)
        await self._compute(request.prompt or "")
        return (0.5, 0.1, float(len(request.prompt or ""))), 3

    async def recompute(
        self, request: GenerateRequest, tokens: Sequence[int], ties: Ties
    ) -> Recomputed:
        raise NotImplementedError

    async def loss(
        self, root: str, adapter: str, given: str, text: str, apart: Apart | None, job: str
    ) -> tuple[float, int]:
        await trio.lowlevel.checkpoint()
        assert root == ROOT
        return 2.0 * len(text), len(text)

    async def _compute(self, prompt: str) -> None:
        await trio.lowlevel.checkpoint()
        if len(self.requests) > self.lost_after:
            raise SessionError("stage-lost", "gone")
        if self.open >= self.room:
            raise FULL
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(1)
            if prompt in self.errors:
                raise self.errors[prompt]
        finally:
            self.open -= 1


class Node:
    """A node that does rows of one kind."""

    def __init__(self, kind: str = "generate", *, seals: JobSeals | None = None) -> None:
        self.gateway, self.shelf = Gateway(), FakeShelf()
        self.interactive = 0
        self.own = {ROOT}
        self.members = {SERVER: record(SERVER, (0, 6))}
        models = JobModels(
            lambda: self.members, trio.current_time, works_for=lambda root: root in self.own
        )
        turn = IdleTime(lambda: self.interactive)
        self.shop = Workshop(
            self.gateway, models, self.shelf, turn, lambda: self.members, seals=seals
        )
        self.runner = RowRunner(KINDS[kind], self.shop)
        self.steps: list[int] = []
        self.kept: list[tuple[int, bytes, dict[str, bytes]]] = []  # with the blobs at that time

    async def run(self, asked: Job) -> JobOutcome:
        return await self.runner.run(asked, self.report)

    def report(self, step: int, saved: bytes = b"") -> None:
        if saved:
            self.kept.append((step, saved, dict(self.shelf.blobs)))
        else:
            self.steps.append(step)


def job(spec: JobSpec | bytes, rows: int = 1, parts: int = 1) -> Job:
    packed = spec if isinstance(spec, bytes) else pack_spec(spec)
    return Job("ab" * 32, AUTHOR, "generate", packed, rows=rows, parts=parts)


def many(count: int) -> Job:
    lines = b"".join(row_of("generate", f"row {number}") + b"\n" for number in range(count))
    return job(JobSpec(ROOT, lines, last=count), count)


def rows_of(outcome: JobOutcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.text.splitlines()]


async def test_a_prompt_is_answered_as_it_asks(autojump_clock: object) -> None:
    node = Node()
    how = RowOptions(raw=True, max_tokens=9, stop=("x",), sampling=Sampling(1.0))
    outcome = await node.run(job(JobSpec(ROOT, row_of("generate", "hello"), options=how)))
    (row,) = rows_of(outcome)
    known = read_fingerprint(row.pop("fingerprint"), 4096)
    assert (known.tokens, known.marks) == ((1, 2), (8, 2))
    assert row == {"line": 1, "text": "HELLO", "tokens": 2, "reason": "stop"}
    assert (outcome.tokens, outcome.reason, node.steps) == (2, "stop", [1])
    (asked,) = node.gateway.requests
    assert (asked.model, asked.prompt, asked.raw, asked.max_tokens) == (ROOT, "hello", True, 9)
    assert (asked.stop, asked.sampling, asked.job) == (("x",), Sampling(1.0), "ab" * 32)
    assert asked.turn is not None, "it gives way"


async def test_a_row_may_have_its_own_options(autojump_clock: object) -> None:
    node = Node()
    said = [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}]
    row = json.dumps({"messages": said, "max_tokens": 5, "seed": 8, "label": "ignored"}).encode()
    await node.run(job(JobSpec(ROOT, row)))
    (asked,) = node.gateway.requests
    assert asked.messages is not None and [m.role for m in asked.messages] == ["system", "user"]
    assert (asked.prompt, asked.max_tokens, asked.sampling.seed) == (None, 5, 8)


async def test_rows_are_computed_at_once_and_answered_in_order(autojump_clock: object) -> None:
    node, began = Node(), trio.current_time()
    outcome = await node.run(many(40))
    assert [row["line"] for row in rows_of(outcome)] == list(range(1, 41))
    assert rows_of(outcome)[39]["text"] == "ROW 39"
    assert trio.current_time() - began < 5, "one by one takes 40 s"
    assert defaults.FIRST_ROWS <= node.gateway.most <= defaults.ROWS_AT_ONCE
    assert node.steps == list(range(1, 41)) and outcome.tokens == 80
    check_output(outcome.text.encode(), 40, 1, 40)


@pytest.fixture
def sixteen_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node begin with 16 rows at once."""
    monkeypatch.setattr(defaults, "FIRST_ROWS", 16)


async def test_fewer_rows_at_once_if_stages_have_no_room(
    autojump_clock: object, sixteen_rows: None
) -> None:
    node = Node()
    node.gateway.room = 3
    outcome = await node.run(many(30))
    assert not any("error" in row for row in rows_of(outcome))
    refused = len(node.gateway.requests) - 30
    assert 0 < refused < 40, "the node learns how much room there is"


async def test_a_node_without_any_room_leaves_the_piece_to_others(autojump_clock: object) -> None:
    node = Node()
    node.gateway.room = 0
    with pytest.raises(SessionError) as raised:
        await node.run(many(3))
    assert raised.value.code == "no-memory"


async def test_a_later_try_keeps_what_an_earlier_one_has_done(
    autojump_clock: object, sixteen_rows: None
) -> None:
    node, asked = Node(), many(20)
    node.gateway.lost_after = 18
    with pytest.raises(SessionError):
        await node.run(asked)
    before, node.gateway.lost_after = len(node.gateway.requests), 1000
    assert len(rows_of(await node.run(asked))) == 20
    assert len(node.gateway.requests) - before < 20


async def test_long_work_on_a_piece_can_be_proven(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "FIRST_ROWS", 1)
    monkeypatch.setattr(defaults, "ROWS_AT_ONCE", 1)
    node, asked = Node(), replace(many(60), lease=60.0)
    outcome = await node.run(asked)
    assert 2 <= len(node.kept) <= 3, "a blob every third of the lease"
    assert node.shelf.blobs == {}, "the output replaces them"
    for step, kept, blobs in node.kept:
        assert len(blobs) <= 2
        node.shelf.blobs = blobs
        claim = new_claim(PEERS[0], asked.id, 1, step=step, saved=kept)
        assert await node.runner.proven(asked, claim) == step
        (root,) = [root for root in blobs if root == kept[:32].hex()]
        blobs[root] = outcome.text.encode() * 2
        with pytest.raises(BadOutcome):
            await node.runner.proven(asked, claim)
        for bad in (b"", kept[:-1], kept[:32] + bytes(8), kept[:32] + b"\xff" * 8):
            with pytest.raises(BadOutcome):
                await node.runner.proven(asked, new_claim(PEERS[0], asked.id, 1, saved=bad))


async def test_rows_wait_for_interactive_requests(autojump_clock: object) -> None:
    node = Node()
    node.gateway.room, node.interactive = 0, 1

    async def later() -> None:
        await trio.sleep(30)
        node.gateway.room, node.interactive = 1000, 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        assert len(rows_of(await node.run(many(3)))) == 3
    assert len(node.gateway.requests) < 10, "it does not ask again and again"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PromptTooLong(9, 5), "prompt-too-long"),
        (SessionError("bad-request", "the prompt is empty"), "bad-request"),
        (TextError("bad-template", "no"), "bad-template"),
    ],
)
async def test_a_fault_of_a_row_is_its_result(
    error: Exception, code: str, autojump_clock: object
) -> None:
    node = Node()
    node.gateway.errors = {"x": error, "row 1": error}
    assert (await node.run(job(JobSpec(ROOT, row_of("generate", "x"))))).error == code
    one, two, three = rows_of(await node.run(many(3)))
    assert (two["line"], two["error"]) == (2, code) and "text" in one and "text" in three


@pytest.mark.parametrize("error", [SessionError("stage-lost", "x"), NoRoute("nobody")])
async def test_other_faults_are_retried(error: Exception, autojump_clock: object) -> None:
    node = Node()
    node.gateway.errors["x"] = error
    with pytest.raises(type(error)):
        await node.run(job(JobSpec(ROOT, row_of("generate", "x"))))


async def test_a_broken_line_is_named_and_the_others_run(autojump_clock: object) -> None:
    lines = b'{"prompt": "a"}\n\nnot json\n{"prompt": 5}\n{"prompt": "b"}'
    found = rows_of(await Node().run(job(JobSpec(ROOT, lines, first=7, last=11), 4)))
    assert [row["line"] for row in found] == [7, 9, 10, 11]
    assert [row.get("error") for row in found] == [None, "bad-row", "bad-row", None]


@pytest.mark.parametrize(("rows", "last"), [(1, 2), (3, 2), (2, 3)])
async def test_a_piece_that_misstates_its_rows_is_impossible(rows: int, last: int) -> None:
    lines = b'{"prompt": "a"}\n{"prompt": "b"}\n'
    assert (await Node().run(job(JobSpec(ROOT, lines, last=last), rows))).error == "bad-spec"


async def test_rows_are_read_from_a_blob(autojump_clock: object) -> None:
    node = Node()
    data = b"".join(row_of("generate", f"row {number}") + b"\n" for number in range(9))
    node.shelf.blobs["cd" * 32] = data
    size = len(data) // 9
    part = BlobPart("cd" * 32, len(data), 3 * size, 5 * size)
    found = rows_of(await node.run(job(JobSpec(ROOT, blob=part, first=4, last=5), 2)))
    assert [(row["line"], row["text"]) for row in found] == [(4, "ROW 3"), (5, "ROW 4")]


async def test_embeddings_lose_no_bit(autojump_clock: object) -> None:
    node = Node("embed")
    row = b'{"text": "one"}'
    outcome = await node.run(job(JobSpec(ROOT, row)))
    assert rows_of(outcome) == [{"line": 1, "embedding": [0.5, 0.1, 3.0], "tokens": 3}]
    assert node.gateway.requests[0].raw and node.gateway.requests[0].turn is not None


async def test_an_impossible_job_is_accepted_and_fails() -> None:
    node = Node()
    assert node.runner.able(job(b"\xc1")) and node.runner.seconds(job(b"\xc1")) == 0.0
    assert (await node.run(job(b"\xc1"))).error == "bad-spec"
    node.runner.measured(job(b"\xc1"), 1.0, 1.0)  # as the worker does after it
    assert not node.gateway.requests


async def test_only_models_of_this_node_are_used() -> None:
    node, asked = Node(), many(1)
    node.own.clear()
    assert not node.runner.able(asked)
    with pytest.raises(NoRoute):
        await node.run(asked)


async def test_a_job_for_a_model_without_servers_fails_at_last(autojump_clock: object) -> None:
    node, asked = Node(), many(1)
    node.members.clear()
    assert not node.runner.able(asked)
    await trio.sleep(defaults.MODEL_PATIENCE)
    assert node.runner.able(asked) and (await node.run(asked)).error == "no-route"


async def test_an_output_that_is_too_large_is_an_error(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RESULT_BYTES", 100)
    assert (await Node().run(many(5))).error == "too-large"


async def test_predictions_follow_what_was_measured() -> None:
    node, asked = Node(), many(30)
    before = node.runner.seconds(asked)
    assert before > 0
    for _ in range(20):
        node.runner.measured(asked, node.runner.seconds(asked), before / 10)
    assert node.runner.seconds(asked) == pytest.approx(before / 10, rel=0.05)


async def test_a_thousand_slow_specs_do_not_stall_the_loop() -> None:
    """Read as a whole, these take 1.4 s each time that a node looks for work."""
    slow = msgpack.packb({"root": "cd" * 32, "lines": b"x", "y": [{}] * 7900})
    jobs, own = Jobs(), Identity.from_seed(b"w" * 32).peer
    for number in range(state_defaults.CLAIM_SCANNED):
        author, nonce = PEERS[number // 32], number.to_bytes(2)
        asked = Job(job_id(author, nonce), author, "generate", slow)
        jobs.changed(FeedName(author, "jobs", 0), asked.id, job_fact(asked, nonce))
    node = Node()
    crew = Crew(Members(), ["generate"], live=lambda: PEERS, now=lambda: 1.0)
    crew.shares.add(own)
    claimant = Claimant(own, jobs, crew, JobHandling(node.runner.able))
    with cost() as spent:
        assert claimant.next(1.0) is None
    assert spent.reference_ms < 50


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b'{"line": 1}\n',
        b'{"line": 1}\n{"line": 1}\n',
        b'{"line": 2}\n{"line": 1}\n',
        b'{"line": 1}\n{"line": 3}\n',
        b'{"line": 0}\n{"line": 1}\n',
        b'{"line": 1}\n{"line": 2}\n{"line": 2}\n',
        b'{"line": 1}\n{"line": "2"}\n',
        b'{"line": 1}\n[2]\n',
        b'{"line": 1}\nrubbish\n',
        b'{"line": 1}\n{"line": 2, "error": 5}\n',
    ],
)
async def test_an_output_with_other_rows_is_refused(lie: bytes) -> None:
    heads = check_output(b'{"line": 1, "text": "x"}\n{"line": 2, "error": "bad-row"}\n', 2, 1, 2)
    assert [head.error for head in heads] == [None, "bad-row"]
    with pytest.raises(BadOutcome):
        check_output(lie, 2, 1, 2)


async def test_a_row_asks_for_no_more_tokens_than_its_job(autojump_clock: object) -> None:
    """The author is charged by the number of the job."""
    node = Node()
    lines = b'{"prompt": "a", "max_tokens": 4096}\n{"prompt": "b", "max_tokens": 1}\n'
    spec = JobSpec(ROOT, lines, last=2, options=RowOptions(max_tokens=2))
    refused, done = rows_of(await node.run(job(spec, 2)))
    assert refused["error"] == "bad-row" and "4096" in refused["message"]
    assert done["text"] == "B"
    assert [request.max_tokens for request in node.gateway.requests] == [1]


async def test_a_piece_ends_when_its_output_is_too_large(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    monkeypatch.setattr(defaults, "RESULT_BYTES", 300)
    assert (await node.run(many(64))).error == "too-large"
    assert len(node.gateway.requests) < 64 and not node.shop.outputs.pieces


async def test_outputs_of_pieces_that_were_given_up_are_bounded(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    monkeypatch.setattr(defaults, "OUTPUTS_KEPT", 3000)
    for number in range(20):
        with trio.move_on_after(1.0 + 16 * defaults.OPENING_TIME):  # half of the rows are done
            await node.run(replace(many(32), id=f"{number:064x}"))
    pieces = node.shop.outputs.pieces
    assert pieces is not None
    kept = [len(line) for piece in pieces.values() for line in (piece.lines or {}).values()]
    assert 0 < sum(kept) <= 3000


async def test_a_piece_takes_at_least_as_long_as_one_of_its_rows() -> None:
    node = Node()
    few = job(JobSpec(ROOT, row_of("generate", "x"), options=RowOptions(max_tokens=100)))
    assert node.runner.longest(few) > 4 * node.runner.seconds(few) > 0.0
    await trio.lowlevel.checkpoint()
    assert node.runner.longest(job(b"invalid")) == 0.0


async def test_no_row_begins_while_an_interactive_request_waits(autojump_clock: object) -> None:
    """The stage would refuse it, and trying takes the time of the request."""
    node, outcomes = Node(), list[JobOutcome]()

    async def work() -> None:
        outcomes.append(await node.run(many(64)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await trio.sleep(5 * defaults.OPENING_TIME)
        begun = len(node.gateway.requests)
        assert 0 < begun < 10
        node.interactive = 1
        await trio.sleep(0.5)
        assert len(node.gateway.requests) == begun
        node.interactive = 0
    assert len(node.gateway.requests) == 64 and len(rows_of(outcomes[0])) == 64


@pytest.mark.parametrize(("opening", "at_once"), [(0.004, 1), (0.05, 3)])
async def test_a_row_begins_as_soon_as_the_row_before_has_its_chain(
    opening: float, at_once: int, autojump_clock: object
) -> None:
    """Chains are opened one after the other, unless they take long: those wait for the network."""
    node, began = Node(), trio.current_time()
    node.gateway.opening = opening
    assert len(rows_of(await node.run(many(32)))) == 32
    assert node.gateway.most_opening == at_once
    begun = trio.current_time() - began - 1.0  # a row takes a second
    assert begun < 32 * min(opening, defaults.OPENING_TIME) + opening + 0.001


async def test_a_row_that_fails_before_it_has_a_chain_delays_no_other(
    autojump_clock: object,
) -> None:
    node, began = Node(), trio.current_time()
    node.gateway.opening = 0.0
    node.gateway.refused = {f"row {number}" for number in range(0, 32, 2)}
    assert sum("error" in row for row in rows_of(await node.run(many(32)))) == 16
    assert trio.current_time() - began < 1.0 + 2 * defaults.OPENING_TIME
