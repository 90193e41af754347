"""Chains leave out what all of their stages have of a prompt, and nothing else."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio

from shoal.tasks.chunks.connector import WantingSession
from shoal.tasks.chunks.store import KvOrigin
from shoal.tasks.defaults import PREFILL_TOKENS, SKIP_TOKENS
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.conversation.heldkv import prompt_spans
from shoal.tasks.inference.gateway import GenerateRequest
from shoal.tasks.inference.generation import GenerationRun, SessionPurpose
from shoal.tasks.inference.messages import Held, SessionOpened, SpanMessage
from shoal.tasks.inference.surviving.continuing import Continuation
from shoal.tasks.routing.paths import Hop
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import FakeSwarm, Node

SESSION = b"0" * 16
PEERS = PeerId("first"), PeerId("second")
LENGTH = 1500
LATEST = 1488
PROMPT = "".join(chr(97 + at * at % 23) for at in range(LENGTH))
TOKENS = 30
DELAY = 0.01


def run_of(*, able: bool = True, length: int = LENGTH, **terms: Any) -> GenerationRun:
    hops = [
        Hop(peer, Parts(not place, 4 * place, 4 * place + 4, bool(place)), "float32")
        for place, peer in enumerate(PEERS)
    ]
    run = GenerationRun(SESSION, hops, [0] * length, 10, 0.0, SessionPurpose(**terms))
    run.start = 0
    for place in (0, 1):
        run.held.opened(place, SessionOpened(0, skips=able, fetches=True))
    return run


def tell(run: GenerationRun, place: int, start: int, stop: int, *, more: bool = True) -> None:
    run.take_held(PEERS[place], Held(SESSION, 1, place, start, stop, more))


def places(spans: Sequence[SpanMessage]) -> list[tuple[int, int]]:
    return [(span.start, span.start + span.count) for span in spans]


def rest_of(run: GenerationRun, *, hidden: int = 64) -> list[tuple[int, int]]:
    return places(list(prompt_spans(run, hidden)))


def test_what_all_stages_have_is_left_out() -> None:
    run = run_of()
    tell(run, 0, 512, 1280, more=False)
    tell(run, 1, 768, 1536, more=False)
    spans = list(prompt_spans(run, 64))
    assert places(spans) == [(0, 256), (256, 512), (512, 768), (1280, 1500)]
    assert [span.behind for span in spans] == [None, None, None, 768]
    assert [span.token for span in spans] == [False, False, False, True]


def test_the_end_of_the_prompt_is_computed_in_any_case() -> None:
    run = run_of()
    for place in (0, 1):
        tell(run, place, 0, 1 << 20, more=False)
    assert rest_of(run) == [(LATEST, LENGTH)]


def test_spans_are_short_while_more_may_arrive() -> None:
    """And they end with blocks, because only whole ones are left out."""
    run = run_of()
    spans = prompt_spans(run, 5120)  # 204 tokens in a span
    found = [next(spans) for _ in range(3)]
    assert places(found) == [(at, at + SKIP_TOKENS) for at in range(0, 192, SKIP_TOKENS)]
    tell(run, 0, 1024, 1280, more=False)
    assert places([next(spans)]) == [(192, 256)], "the second stage may still get them"
    tell(run, 1, 0, 0, more=False)
    assert places([next(spans)]) == [(256, 448)]


BOTH = ((0, 512), (0, 512))


@pytest.mark.parametrize(
    ("held", "terms"),
    [
        (((0, 512), (0, 0)), {}),
        (((0, 0), (0, 0)), {}),
        (((0, 512), (512, 1280)), {}),
        (BOTH, {"able": False}),
        (BOTH, {"pooled": True}),
        (BOTH, {"mended": True}),
    ],
)
def test_nothing_is_left_out_otherwise(
    held: tuple[tuple[int, int], ...], terms: dict[str, bool]
) -> None:
    run = run_of(able=terms.get("able", True), pooled=terms.get("pooled", False))
    if terms.get("mended"):
        run.continuation = Continuation(0)
    for place, positions in enumerate(held):
        tell(run, place, *positions, more=False)
    found = rest_of(run)
    assert [start for start, _ in found][1:] == [stop for _, stop in found][:-1]
    assert found[0][0] == 0 and found[-1][1] == LENGTH
    assert max(stop - start for start, stop in found) == PREFILL_TOKENS


def test_what_was_sent_already_is_left_out_too() -> None:
    """Stages drop it while it waits. It is told once."""
    run = run_of()
    spans = prompt_spans(run, 64)
    sent = [next(spans) for _ in range(3)]
    run.held.under_way += [span.start + span.count for span in sent]
    assert run.pending == 0
    tell(run, 0, 64, 1280)
    assert run.pending == 0
    tell(run, 1, 128, 1280)
    assert run.pending == 1
    tell(run, 1, 64, 1280)
    assert run.pending == 1
    span = next(spans)
    assert (sent[-1].start, span.start, span.behind) == (128, 1280, 64)


def test_no_other_peer_speaks_for_a_stage() -> None:
    run = run_of()
    for sender, place in ((PEERS[0], 1), (PEERS[1], 0), (PEERS[0], 2)):
        with pytest.raises(SessionError, match="another stage"):
            run.take_held(sender, Held(SESSION, 1, place, 0, 1280, False))
    assert run.held.common == (0, 0)


def test_what_was_told_before_the_reply_is_not_forgotten() -> None:
    """The reply to `session.open` may overtake, or be overtaken."""
    run = run_of()
    tell(run, 0, 512, 1280, more=False)
    run.held.opened(0, SessionOpened(0, skips=True, fetches=True))
    tell(run, 1, 0, 1280, more=False)
    assert run.held.common == (512, 1280) and not run.held.more


def test_parts_of_blocks_do_not_count() -> None:
    run = run_of()
    for place in (0, 1):
        tell(run, place, 250, 1290, more=False)
    assert run.held.common == (256, 1280)


# Whole sessions over fakes: each position's output depends on all inputs before it.


class Arriving:
    """Connector of all stages: KV arrives chunk by chunk, the last one first."""

    def __init__(self) -> None:
        self.engines: dict[tuple[int, int], list[Any]] = {}
        self.pauses = {0: 0.15, 4: 0.15}
        self.lies = -1  # the first layer of the stage that claims what it has not
        self.ended = 0

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]:
        await trio.lowlevel.checkpoint()
        return wanted.cached, None

    def keep(self, session: bytes) -> None:
        """Do nothing: these stages have cached nothing."""

    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None:
        ready.set()
        assert wanted.held is not None
        layers = wanted.origin.layers
        try:
            for start in (1024, 768, 512, 256):
                await trio.sleep(self.pauses[layers[0]])
                for engine in self.engines[layers] if self.lies != layers[0] else ():
                    if wanted.session in engine.states:
                        engine.arrived[wanted.session] = start, 1280
                wanted.held(start, 1280)
        finally:
            self.ended += 1

    def refute(self, peer: PeerId, gateway: PeerId) -> None:
        raise NotImplementedError

    def saved(self, origin: KvOrigin, names: bytes) -> None:
        """Do nothing."""


class Skipped:
    """A chain of two stages, and a spare for each."""

    def __init__(self) -> None:
        self.connector = Arriving()
        self.swarm = FakeSwarm((4, 8), connector=self.connector)
        self.stages = self.swarm.stages
        self.spares = [
            Node(self.swarm, 60 + number, stage.parts) for number, stage in enumerate(self.stages)
        ]
        values: list[int] = [ord(letter) for letter in PROMPT]
        for node in (*self.stages, *self.spares):
            assert node.parts is not None
            node.serve(node.parts, kv_heads=1)
            layers = node.parts.start, node.parts.stop
            self.connector.engines.setdefault(layers, []).append(node.engine)
        for pair in zip(self.stages, self.spares, strict=True):
            rows: list[list[int]] = []
            for value in values:
                rows.append(pair[0].engine.row(rows[-1] if rows else [], value))
            values = [row[-1] for row in rows]
            for node in pair:
                node.engine.ahead = rows
        self.tokens: tuple[int, ...] = ()
        self.error: SessionError | None = None

    def starts(self, node: Node) -> list[int]:
        return [span.start for span in node.engine.spans if span.start < LENGTH]

    def lefts(self) -> list[tuple[int, int]]:
        """Return the positions that the first stage was not sent."""
        spans = [(each.start, each.start + each.count) for each in self.stages[0].engine.spans]
        return [(stop, start) for (_, stop), (start, _) in pairwise(spans) if start > stop]

    async def run(self, deed: Callable[[], Awaitable[None]] | None = None) -> None:
        async def body(_: FakeSwarm) -> None:
            self.swarm.wire.delay = DELAY
            async with trio.open_nursery() as nursery:
                for spare in self.spares:
                    await nursery.start(spare.stage.run)
                nursery.start_soon(self.ask)
                if deed is not None:
                    await trio.sleep(0.05)  # the chain is open
                    self.swarm.nodes += self.spares
                    await deed()
                while not (self.tokens or self.error):  # noqa: ASYNC110
                    await trio.sleep(0.1)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()

        with trio.fail_after(300):
            await self.swarm.run(body)
        alive = [node for node in self.swarm.nodes if node.peer in self.swarm.wire.endpoints]
        assert not any(node.engine.states for node in alive)

    async def ask(self) -> None:
        async def emit(_event: object) -> None:
            await trio.lowlevel.checkpoint()

        request = GenerateRequest(model="m", prompt=PROMPT, raw=True, max_tokens=TOKENS)
        try:
            summary = await self.swarm.client.gateway.generate(request, emit)
        except SessionError as error:
            self.error = error
        else:
            self.tokens = summary.token_ids

    def check(self) -> None:
        """Check that the answer is that of one engine with all layers."""
        expected = self.swarm.expected([ord(letter) for letter in PROMPT], TOKENS)
        assert list(self.tokens) == expected

    async def die(self, node: Node) -> None:
        """End a node: its links are lost at once."""
        await trio.lowlevel.checkpoint()
        del self.swarm.wire.endpoints[node.peer]
        for endpoint in list(self.swarm.wire.endpoints.values()):
            endpoint.lose(node.peer)


@pytest.mark.trio
async def test_a_chain_leaves_out_what_has_arrived_at_both_stages(autojump_clock: object) -> None:
    skipped = Skipped()
    await skipped.run()
    skipped.check()
    ((first, last),) = skipped.lefts()
    assert last == 1280 and last - first >= 512
    assert skipped.connector.ended == 2, "the fetches end with the session"


@pytest.mark.trio
@pytest.mark.parametrize("slow", [0, 4])
async def test_the_slower_stage_says_when(slow: int, autojump_clock: object) -> None:
    skipped = Skipped()
    skipped.connector.pauses[slow] = 0.3
    await skipped.run()
    skipped.check()
    ((first, last),) = skipped.lefts()
    assert last == 1280 and first >= 512


@pytest.mark.trio
async def test_a_stage_that_gets_nothing_has_all_computed(autojump_clock: object) -> None:
    skipped = Skipped()
    skipped.connector.pauses[4] = 1000.0
    await skipped.run()
    skipped.check()
    assert not skipped.lefts()


@pytest.mark.trio
@pytest.mark.parametrize("liar", [0, 4])
async def test_a_stage_that_claims_what_it_lacks_ends_its_own_session(
    liar: int, autojump_clock: object
) -> None:
    skipped = Skipped()
    skipped.connector.lies = liar
    await skipped.run()
    assert skipped.error is not None and skipped.error.code == "gap"
    assert not skipped.tokens


@pytest.mark.trio
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("at", [0.1, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5])
async def test_a_stage_may_be_lost_while_kv_arrives_and_after_it_was_used(
    victim: int, at: float, autojump_clock: object
) -> None:
    """What the log lacks of the positions that were left out is computed again."""
    skipped = Skipped()

    async def deed() -> None:
        await trio.sleep(at)
        await skipped.die(skipped.stages[victim])

    await skipped.run(deed)
    skipped.check()
    assert skipped.spares[victim].engine.spans or not skipped.starts(skipped.stages[victim])


@pytest.mark.trio
@pytest.mark.parametrize("at", [0.5, 1.5])
async def test_a_stage_may_lose_its_worker_meanwhile(at: float, autojump_clock: object) -> None:
    skipped = Skipped()

    async def deed() -> None:
        await trio.sleep(at)
        await skipped.stages[1].crash(start=0.5, load=1.0)

    await skipped.run(deed)
    skipped.check()
