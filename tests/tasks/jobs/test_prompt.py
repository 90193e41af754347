"""Tests of prompts as jobs: untrusted requests, and which node can do them."""

import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgpack
import pytest
import trio

from shoal.state import defaults as state_defaults
from shoal.tasks.jobs.claimant import Claimant, WorkerRing
from shoal.state.feeds.entry import FeedName
from shoal.state.membership.record import MemberRecord, ShardRecord
from shoal.state.views.jobs import Job, Jobs, job_fact, job_id
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.errors import NoRoute, PromptTooLong, SessionError, TextError
from shoal.tasks.inference.generation import Emit, GenerateRequest, Summary
from shoal.tasks.inference.routing import find_route
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.errors import BadSpec
from shoal.tasks.jobs.prompt import KIND, Prompts, PromptSpec, pack_spec, read_spec, served
from shoal.tasks.jobs.worker import IdleTime
from shoal.tasks.text.process import ChatTurn, TextDelta
from shoal.transport.identity import Identity, PeerId

ROOT = "ab" * 32
AUTHOR, SERVER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]
FIELDS: dict[str, Any] = {"root": ROOT, "prompt": b"hello"}


@pytest.mark.parametrize(
    "spec",
    [
        PromptSpec(ROOT, "hello\nyou", name="tiny", raw=True, max_tokens=7),
        PromptSpec(ROOT, None, (ChatTurn("system", "be"), ChatTurn("user", "é"))),
        PromptSpec(ROOT, "x", sampling=Sampling(0.5, 3, 0.9, 2**64 - 1), stop=("\n", "end")),
    ],
)
def test_specs_survive_a_round_trip(spec: PromptSpec) -> None:
    assert read_spec(pack_spec(spec)) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"root": "ab"},
        {"root": None},
        {"prompt": None},
        {"prompt": b""},
        {"prompt": "text"},
        {"prompt": b"\xff"},
        {"messages": [["user", b"x"]]},  # beside a prompt
        {"prompt": None, "messages": []},
        {"prompt": None, "messages": [["user", b"x"]] * (defaults.PROMPT_MESSAGES + 1)},
        {"prompt": None, "messages": [["user"]]},
        {"prompt": None, "messages": [["us\ner", b"x"]]},
        {"name": "x" * 129},
        {"name": "\x1b"},
        {"tokens": 1.5},
        {"stop": [b"x"] * 17},
        {"stop": [b""]},
        {"stop": [b"x" * 257]},
        {"sampling": [0.0, 0, 1.0]},
        {"sampling": [float("nan"), 0, 1.0, 0]},
        {"sampling": [0.0, -1, 1.0, 0]},
        {"sampling": [0.0, 0, 0.0, 0]},
        {"sampling": [0.0, 0, 1.0, -1]},
        {"sampling": [True, 0, 1.0, 0]},
    ],
)
def test_invalid_specs_are_refused(changes: dict[str, Any]) -> None:
    assert read_spec(msgpack.packb(FIELDS)).prompt == "hello"
    with pytest.raises(BadSpec):
        read_spec(msgpack.packb({**FIELDS, **changes}))


def test_too_many_tokens_are_clamped() -> None:
    most = defaults.PROMPT_TOKENS
    assert read_spec(msgpack.packb({**FIELDS, "tokens": 2**40})).max_tokens == most
    assert read_spec(msgpack.packb({**FIELDS, "tokens": -5})).max_tokens == 1


def record(peer: PeerId, *layers: tuple[int, int], root: str = ROOT) -> MemberRecord:
    """A member that serves shards of six layers."""
    shards = tuple(
        ShardRecord(root, start == 0, start, stop, stop == 6, "float32", 4096)
        for start, stop in layers
    )
    return MemberRecord(peer, seq=1, shards=shards)


@pytest.mark.parametrize(
    ("layers", "whole"),
    [(((0, 6),), True), (((0, 3),), False), (((3, 6),), False), ((), False)],
)
def test_whether_all_of_a_model_is_served(layers: tuple[tuple[int, int], ...], whole: bool) -> None:
    assert served({SERVER: record(SERVER, *layers)}) == ({ROOT} if whole else set())
    both = {SERVER: record(SERVER, (0, 3)), AUTHOR: record(AUTHOR, (3, 6))}
    assert served(both) == {ROOT}


PEERS = [Identity.from_seed(number.to_bytes(32)).peer for number in range(1, 121)]


def test_a_model_is_served_if_and_only_if_it_has_a_route() -> None:
    lot = Random(1)
    found = 0
    for _ in range(500):
        members = {peer: _by_lot(peer, lot) for peer in PEERS[: lot.randint(1, 8)]}
        whole = any(_has_route(members, layers) for layers in range(1, 5))
        assert served(members) == ({ROOT} if whole else set())
        found += whole
    assert 100 < found < 400


def _by_lot(peer: PeerId, lot: Random) -> MemberRecord:
    """Create a member with random claims about a model of about four layers."""
    shards = []
    for _ in range(lot.randint(0, 3)):
        start = lot.randint(0, 3)
        ends = lot.random() < 0.8, start, lot.randint(start + 1, 4), lot.random() < 0.3
        dtype = lot.choice(("float32", "float32", "float32", "bfloat16", "none"))
        shards.append(ShardRecord(ROOT, *ends, dtype, lot.choice((0, 99, 99))))
    return MemberRecord(peer, seq=1, shards=tuple(shards))


def _has_route(members: dict[PeerId, MemberRecord], layers: int) -> bool:
    with suppress(NoRoute):
        return bool(find_route(members, ROOT, layers, 1))
    return False


def test_each_claimed_end_of_a_model_costs_one_step() -> None:
    """With a search for each of these 960 ends this takes seconds."""
    members = {peer: record(peer, (0, 3)) for peer in PEERS[:60]}
    for number, peer in enumerate(PEERS[60:]):
        shards = (
            ShardRecord(ROOT, False, 1, 2 + 16 * number + end, True, "float32", 99)
            for end in range(16)
        )
        members[peer] = MemberRecord(peer, seq=1, shards=tuple(shards))
    began = time.process_time()
    assert not served(members)
    assert time.process_time() - began < 0.3


class Gateway:
    """Gateway with prepared answers."""

    def __init__(self, answer: Callable[[], Summary]) -> None:
        self.answer = answer
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary:
        self.requests.append(request)
        await emit(TextDelta("one", False))
        await emit(TextDelta("two", False))
        return self.answer()


class Desk:
    """A node's prompts, the members that serve models, and its clock."""

    def __init__(self, answer: Callable[[], Summary] | None = None) -> None:
        self.now = 1000.0
        self.members = {SERVER: record(SERVER, (0, 6))}
        self.looks = 0
        self.gateway = Gateway(answer or said)
        self.own = {ROOT}
        self.prompts = Prompts(
            self.gateway,
            IdleTime(lambda: 0),
            self._members,
            lambda: self.now,
            works_for=lambda root: root in self.own,
        )

    def _members(self) -> dict[PeerId, MemberRecord]:
        self.looks += 1
        return self.members

    def run(self, spec: bytes, steps: list[int] | None = None) -> Any:
        progress = (steps if steps is not None else []).append
        return trio.run(self.prompts.run, job(spec), progress)


def job(spec: bytes) -> Job:
    return Job("ab" * 32, AUTHOR, "prompt", spec)


def said() -> Summary:
    return Summary("stop", 3, 2, 0.1, 10.0, 0.0, "onetwo", (1, 2))


def raising(error: Exception) -> Callable[[], Summary]:
    def answer() -> Summary:
        raise error

    return answer


def test_it_is_answered_as_it_asks() -> None:
    desk, steps = Desk(), list[int]()
    spec = PromptSpec(ROOT, "hello", raw=True, max_tokens=9, stop=("x",), sampling=Sampling(1.0))
    outcome = desk.run(pack_spec(spec), steps)
    assert (outcome.text, outcome.tokens, outcome.reason) == ("onetwo", 2, "stop")
    (asked,) = desk.gateway.requests
    assert (asked.model, asked.prompt, asked.raw, asked.max_tokens) == (ROOT, "hello", True, 9)
    assert (asked.stop, asked.sampling) == (("x",), Sampling(1.0))
    assert asked.turn is not None, "it gives way"
    assert steps == [1, 2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PromptTooLong(9, 5), "prompt-too-long"),
        (SessionError("bad-request", "the prompt is empty"), "bad-request"),
        (TextError("bad-template", "no"), "bad-template"),
    ],
)
def test_a_fault_of_the_request_is_its_result(error: Exception, code: str) -> None:
    assert Desk(raising(error)).run(pack_spec(PromptSpec(ROOT, "x"))).error == code


@pytest.mark.parametrize("error", [SessionError("stage-lost", "x"), NoRoute("nobody")])
def test_other_faults_are_retried(error: Exception) -> None:
    with pytest.raises(type(error)):
        Desk(raising(error)).run(pack_spec(PromptSpec(ROOT, "x")))


def test_an_impossible_job_is_accepted_and_fails() -> None:
    desk = Desk()
    assert desk.prompts.able(job(b"\xc1"))
    assert desk.run(b"\xc1").error == "bad-spec"
    assert not desk.gateway.requests


def test_a_job_for_an_unserved_model_fails_after_a_while() -> None:
    desk, asked = Desk(), job(pack_spec(PromptSpec(ROOT, "x")))
    assert desk.prompts.able(asked)
    desk.members.clear()
    desk.now += defaults.SERVED_FOR
    assert not desk.prompts.able(asked)
    desk.now += defaults.MODEL_PATIENCE - 1
    assert not desk.prompts.able(asked)
    desk.now += 1
    assert desk.prompts.able(asked)
    assert desk.run(asked.spec).error == "no-route"
    desk.members[SERVER] = record(SERVER, (0, 6))
    desk.now += defaults.SERVED_FOR
    assert desk.run(asked.spec).text == "onetwo"
    desk.members.clear()
    desk.now += defaults.SERVED_FOR
    assert not desk.prompts.able(asked), "it is waited for again"


def test_a_model_that_this_node_has_no_reason_to_know_is_left_to_others() -> None:
    desk, asked = Desk(), job(pack_spec(PromptSpec(ROOT, "x")))
    desk.own.clear()
    assert not desk.prompts.able(asked), "however well strangers serve it"
    with pytest.raises(NoRoute):
        desk.run(asked.spec)
    assert not desk.gateway.requests
    desk.members.clear()
    desk.now += defaults.SERVED_FOR
    assert not desk.prompts.able(asked)
    desk.now += defaults.MODEL_PATIENCE
    assert desk.prompts.able(asked), "any node gives up a job for a model without servers"
    assert desk.run(asked.spec).error == "no-route" and not desk.gateway.requests


def test_thousands_of_jobs_share_one_lookup() -> None:
    desk, asked = Desk(), job(pack_spec(PromptSpec(ROOT, "x")))
    for _ in range(1000):
        assert desk.prompts.able(asked)
    assert desk.looks == 1


def test_a_thousand_slow_specs_do_not_stall_the_loop() -> None:
    """Read as a whole, these take 1.4 s each time that a node looks for work."""
    slow = msgpack.packb({"root": "cd" * 32, "prompt": b"x", "y": [{}] * 7900})
    jobs, own = Jobs(), Identity.from_seed(b"w" * 32).peer
    for number in range(state_defaults.CLAIM_SCANNED):
        author, nonce = PEERS[number // 32], number.to_bytes(2)
        asked = Job(job_id(author, nonce), author, KIND, slow)
        jobs.changed(FeedName(author, "jobs", 0), asked.id, job_fact(asked, nonce))
    shares, desk = WorkerRing(), Desk()
    shares.add(own)
    claimant = Claimant(
        own, jobs, shares, willing=desk.prompts.able, silent=lambda peer: 0.0, patience=lambda: 1.0
    )
    began = time.process_time()
    assert claimant.next(1.0) is None
    assert time.process_time() - began < 0.05


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb({"prompt": b"hello", "root": ROOT}),
        msgpack.packb({"root": ROOT.upper(), "prompt": b"hello"}),
        msgpack.packb([{"root": ROOT, "prompt": b"hello"}]),
        b"\x82\xa4root\xd9\x40" + b"ab" * 31,
    ],
)
def test_a_spec_that_does_not_begin_with_its_root_is_refused(packed: bytes) -> None:
    with pytest.raises(BadSpec):
        read_spec(packed)
    assert Desk().prompts.able(job(packed)), "by saying so"


@pytest.mark.parametrize("fields", [2, 16, 1_300])
def test_a_spec_may_have_as_many_fields_as_fit(fields: int) -> None:
    more = {f"{number}": 0 for number in range(fields - 2)}
    packed = msgpack.packb({**FIELDS, **more})
    assert len(packed) <= state_defaults.JOB_SPEC_BYTES
    assert read_spec(packed).root == ROOT


def test_models_that_strangers_name_are_remembered_in_bounds() -> None:
    desk = Desk()
    jobs = [
        job(pack_spec(PromptSpec(f"{number:064x}", "x")))
        for number in range(3 * defaults.MODELS_WAITED_FOR)
    ]
    assert not any(desk.prompts.able(each) for each in jobs), "their models may still be served"
    assert desk.looks == 1, "however many models they name"
    desk.now += defaults.MODEL_PATIENCE
    given_up = [desk.prompts.able(each) for each in reversed(jobs)]
    assert given_up.count(True) == defaults.MODELS_WAITED_FOR, "those named last"
