"""Tests of the stage: spans pass, strangers are refused, nothing is left behind."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from shoal.tasks.chunks.connector import WantingSession
from shoal.tasks.chunks.store import KvOrigin
from shoal.tasks.defaults import (
    ADAPTER_LOADS,
    ADAPTER_WAITS_OF_ONE,
    ADAPTER_WAITS_UNPROVEN,
    ADAPTERS_ASKED,
    KV_TURN,
    QUEUED_REQUESTS,
    QUEUED_TIME,
    SPANS_WAITING,
)
from shoal.tasks.engine.interface import (
    NAME_BYTES,
    FailedEvent,
    Parts,
    Sampling,
    SessionTerms,
    Span,
    TokenEvent,
)
from shoal.tasks.inference import slowlinks
from shoal.tasks.inference.messages import (
    Close,
    FeedToken,
    Open,
    SessionSampling,
    SpanMessage,
    pack_tokens,
)
from shoal.tasks.inference.serving import inputs
from shoal.tasks.placement.shard import ShardProperties
from shoal.tasks.usage.metering import Use
from shoal.transport.errors import CallRefused
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Reply
from tests.tasks.fake_swarm import (
    CONTEXT,
    HIDDEN,
    KV,
    ROOT,
    VOCABULARY,
    FakeSwarm,
    Node,
    peer_of,
)

SESSION = b"s" * 16
OTHER = "cd" * 32
Body = Callable[[FakeSwarm], Awaitable[None]]


async def _run(swarm: FakeSwarm, body: Body, seconds: float = 60) -> None:
    with trio.fail_after(seconds):
        await swarm.run(body)


async def _call(sender: Node, to: Node, method: str, header: dict[str, Any]) -> Reply:
    return await sender.courier.call(to.peer, method, header, timeout=5)


def _post(sender: Node, to: Node, method: str, header: dict[str, Any], payload: bytes) -> None:
    sender.courier.post(to.peer, method, header, payload)


def _open(swarm: FakeSwarm, at: int = 0, **changes: Any) -> Open:
    stage = swarm.stages[at]
    assert stage.parts is not None
    message = Open(
        session=SESSION,
        epoch=1,
        root=ROOT,
        parts=stage.parts,
        dtype="float32",
        stages=tuple(node.peer for node in swarm.stages),
        index=at,
        tokens=50,
        soon=50,
        steps=5,
        stop_ids=(VOCABULARY - 1,),
        sampling=SessionSampling(),
    )
    return replace(message, **{"soon": changes.get("tokens", message.tokens)} | changes)


async def _open_all(swarm: FakeSwarm, **changes: Any) -> None:
    for index, node in enumerate(swarm.stages):
        await _call(swarm.client, node, "session.open", _open(swarm, index, **changes).header())


async def _close_all(swarm: FakeSwarm) -> None:
    for node in swarm.stages:
        await _call(swarm.client, node, "session.close", Close(SESSION).header())
    swarm.assert_free()


async def _refused(sender: Node, to: Node, method: str, header: dict[str, Any]) -> str:
    with pytest.raises(CallRefused) as caught:
        await _call(sender, to, method, header)
    return caught.value.code


async def _settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


def _room(stage: Node, gateway: str) -> int:
    return stage.stage.room(ROOT, stage.engine.parts, PeerId(gateway))


def _span(start: int = 0, count: int = 3, **changes: Any) -> SpanMessage:
    return replace(SpanMessage(SESSION, 1, 0, start, count, True, 0.0), **changes)


@pytest.mark.trio
async def test_tokens_are_generated_without_the_gateway(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        _post(swarm.client, swarm.stages[0], "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        fed = [post for post in swarm.wire.posts if post[2] == "session.feed"]
        assert [post[:2] for post in fed] == [(swarm.stages[2].peer, swarm.stages[0].peer)] * 4
        spans = [post for post in swarm.wire.posts if post[2] == "session.span"]
        assert [post[0] for post in spans].count(swarm.client.peer) == 1
        last = spans[-1][3]  # computing time adds up along the chain
        assert last["seconds"] == pytest.approx(0.002)
        assert "gateway" in last
        log = swarm.stages[0].stage.log(swarm.client.peer, SESSION, 0)
        assert log is not None
        assert [(sent.start, sent.count) for sent in log.slices(0)][:2] == [(0, 3), (3, 1)]
        assert swarm.stages[2].stage.log(swarm.client.peer, SESSION, 2).bytes == 0  # type: ignore[union-attr]
        await _close_all(swarm)

    await _run(swarm, body)


BAD_OPENS: list[tuple[str, dict[str, Any]]] = [
    ("no-shard", {"root": "cd" * 32}),
    ("no-shard", {"parts": Parts(True, 0, 3, False)}),
    ("no-shard", {"dtype": "bfloat16"}),
    ("bad-message", {"tokens": CONTEXT + 1}),
    ("bad-message", {"index": 1}),
    ("bad-message", {"stages": (peer_of(1),)}),  # not the head, yet alone
    ("bad-message", {"stages": (peer_of(2), peer_of(1), peer_of(3))}),
    ("unreachable", {"stages": (peer_of(1), peer_of(99), peer_of(3))}),
]


@pytest.mark.trio
@pytest.mark.parametrize(("code", "changes"), BAD_OPENS)
async def test_an_open_that_does_not_fit_is_refused(
    autojump_clock: object, code: str, changes: dict[str, Any]
) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm, **changes).header()
        assert await _refused(swarm.client, swarm.stages[0], "session.open", header) == code
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_without_an_engine_every_open_is_refused(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    bare = Node(swarm, 50, None, computes=False)

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm, stages=(bare.peer,)).header()
        assert await _refused(swarm.client, bare, "session.open", header) == "no-shard"
        bare.stage.withdraw()

    await _run(swarm, body)


@pytest.mark.trio
async def test_open_twice_and_open_after_close_are_refused(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        header = _open(swarm).header()
        assert await _refused(swarm.client, stage, "session.open", header) == "session-open"
        await _close_all(swarm)
        assert await _refused(swarm.client, stage, "session.open", header) == "session-closed"
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_close_during_an_open_leaves_nothing_behind(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    stage.engine.opening = trio.Event()

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:

            async def opening() -> None:
                code = await _refused(swarm.client, stage, "session.open", _open(swarm).header())
                assert code == "session-closed"

            nursery.start_soon(opening)
            await _settle()
            await _call(swarm.client, stage, "session.close", Close(SESSION).header())
            assert stage.engine.opening is not None
            stage.engine.opening.set()
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_open_with_a_lost_caller_leaves_nothing_behind(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    stage.engine.opening = trio.Event()

    async def body(_: FakeSwarm) -> None:
        with trio.move_on_after(1):
            await _call(swarm.client, stage, "session.open", _open(swarm).header())
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_sessions_are_limited_by_gateway_and_memory(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def opening(sender: Node, number: int) -> str:
        header = _open(swarm, session=number.to_bytes(16)).header()
        try:
            await _call(sender, stage, "session.open", header)
        except CallRefused as error:
            return error.code
        return "open"

    async def body(_: FakeSwarm) -> None:
        answers = [await opening(swarm.client, number) for number in range(17)]
        assert answers == ["open"] * 16 + ["too-many-sessions"]
        owner = [await opening(stage, number) for number in range(65)]  # its own gateway
        assert owner == ["open"] * 64 + ["too-many-sessions"], "it takes the places of others"
        assert await opening(swarm.client, 99) == "too-many-sessions", "the owner keeps its own"
        await _call(stage, stage, "session.close", Close((0).to_bytes(16)).header())
        stage.engine.kv_tokens = 0
        await _settle()
        assert await opening(stage, 99) == "no-memory"
        assert stage.stage.sessions == 63

    await _run(swarm, body)


@pytest.mark.trio
async def test_one_gateway_cannot_reserve_all_kv(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage, other = swarm.stages[0], Node(swarm, 201, None)
    stage.serve(Parts(True, 0, 2, True), kv_tokens=4 * CONTEXT)

    async def opening(sender: Node, number: int, tokens: int = CONTEXT) -> str:
        header = _open(swarm, session=number.to_bytes(16), tokens=tokens).header()
        try:
            await _call(sender, stage, "session.open", header)
        except CallRefused as error:
            return error.code
        return "open"

    async def body(_: FakeSwarm) -> None:
        greedy = [await opening(swarm.client, number) for number in range(4)]
        assert greedy == ["open", "open", "no-memory", "no-memory"]
        assert await opening(swarm.client, 5, 1) == "no-memory"
        header = _open(swarm, session=(5).to_bytes(16), tokens=1).header()
        with pytest.raises(CallRefused, match=r"room for 0 tokens .* now, 1 are asked for"):
            await _call(swarm.client, stage, "session.open", header)
        assert _room(stage, swarm.client.peer) == 0
        assert _room(stage, other.peer) == 2 * CONTEXT == _room(stage, stage.peer)
        assert await opening(other, 6) == "open"
        await _call(swarm.client, stage, "session.close", Close((0).to_bytes(16)).header())
        assert await opening(swarm.client, 7) == "open"  # what was closed counts no longer
        assert await opening(stage, 8, 1) == "open"

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_only_session_and_the_owner_may_take_all_kv(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    stage.serve(Parts(True, 0, 2, True), kv_tokens=CONTEXT)

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm, tokens=CONTEXT)
        await _close_all(swarm)
        for number in range(4):
            tokens = 496 + number % 2 * 8  # 500 on average, in 31 or 32 blocks of 16
            header = _open(swarm, session=number.to_bytes(16), tokens=tokens).header()
            if number == 3:
                tokens = CONTEXT - 2 * 496 - 512 + 1
                large = _open(swarm, session=number.to_bytes(16), tokens=tokens).header()
                assert await _refused(stage, stage, "session.open", large) == "no-memory"
                header = _open(swarm, session=number.to_bytes(16), tokens=tokens - 1).header()
            await _call(stage, stage, "session.open", header)
        assert stage.stage.sessions == 4
        assert _room(stage, stage.peer) == 0

    await _run(swarm, body)


@pytest.mark.trio
async def test_room_is_in_whole_blocks(autojump_clock: object) -> None:
    """As in the engine, which otherwise would refuse what the stage has promised."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    stage.serve(Parts(True, 0, 2, True), kv_tokens=16 * 6 + 15)

    async def body(_: FakeSwarm) -> None:
        assert _room(stage, swarm.client.peer) == 96
        await _open_all(swarm, tokens=33)
        assert _room(stage, stage.peer) == 48
        await _call(stage, stage, "session.open", _open(swarm, tokens=48).header())
        assert _room(stage, stage.peer) == 0

    await _run(swarm, body)


NAMES = bytes(range(64))


@pytest.mark.trio
@pytest.mark.parametrize("size", [1, 15, 17, 49, 64, 10_000])
async def test_names_that_do_not_fit_the_session_are_refused(
    autojump_clock: object, size: int
) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm).header()  # 50 tokens: at most three full blocks
        with pytest.raises(CallRefused) as caught:
            await swarm.client.courier.call(
                stage.peer, "session.open", header, bytes(size), timeout=5
            )
        assert caught.value.code == "bad-message"
        assert stage.engine.terms == []
        swarm.assert_free()
        await swarm.client.courier.call(stage.peer, "session.open", header, NAMES[:48], timeout=5)
        assert stage.engine.terms == [SessionTerms(swarm.client.peer, False, NAMES[:48], soon=50)]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("size", "kept"), [(0, 0), (5, 0), (16, 16), (31, 16), (48, 48), (64, 48), (10_000, 48)]
)
async def test_a_close_keeps_whole_names_of_the_session_only(
    autojump_clock: object, size: int, kept: int
) -> None:
    """A session ends whatever names it is closed with."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        names = (NAMES * 200)[:size]
        await swarm.client.courier.call(
            stage.peer, "session.close", Close(SESSION).header(), names, timeout=5
        )
        assert stage.engine.closed == [NAMES[:kept]]
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_owner_and_background_come_from_the_link_and_the_job(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage, other = swarm.stages[0], Node(swarm, 201, None)

    async def body(_: FakeSwarm) -> None:
        job = _open(swarm, job="cd" * 32).header()
        await _call(swarm.client, stage, "session.open", job)
        await _call(other, stage, "session.open", _open(swarm, user=b"tag").header())
        assert stage.engine.terms == [
            SessionTerms(swarm.client.peer, True, soon=50),
            SessionTerms(other.peer, False, user=b"tag", soon=50),
        ]

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_engine_learns_where_a_gateway_is(autojump_clock: object) -> None:
    """The latest address counts. A gateway behind a relay, and this node's own, have none."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    four, six, relayed = (Node(swarm, number, None) for number in (201, 202, 203))
    wire = swarm.wire
    wire.seen[four.peer] = {"198.51.100.1": (1, 0), "192.0.2.7": (1, 0)}
    wire.seen[six.peer] = {"2001:db8:1:2:3::4": (0, 1)}

    async def body(_: FakeSwarm) -> None:
        for node in (four, six, relayed, stage):
            await _call(node, stage, "session.open", _open(swarm).header())
        networks = [terms.network for terms in stage.engine.terms]
        assert networks == ["192.0.2.7/32", "2001:db8:1:2::/64", "", ""]

    await _run(swarm, body)


@pytest.mark.trio
async def test_only_the_gateway_closes(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first, head = swarm.stages
        await _call(head, first, "session.close", Close(SESSION).header())
        assert first.stage.sessions == 1  # head's own session of that name, which is none
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_two_gateways_may_use_one_name(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    other = Node(swarm, 201, None)
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        await _call(other, stage, "session.open", _open(swarm).header())
        assert len(stage.engine.states) == 2
        await _call(other, stage, "session.close", Close(SESSION).header())
        assert stage.stage.log(swarm.client.peer, SESSION, 0) is not None
        await _close_all(swarm)

    await _run(swarm, body)


HIDDEN_SPAN = b"\0" * 24


@pytest.mark.trio
@pytest.mark.parametrize(
    ("sender", "to", "method", "message", "payload", "code"),
    [
        # Spans come from the stage before only, tokens from the head only.
        (2, 0, "session.span", _span(gateway=peer_of(200)), pack_tokens([1] * 3), "not-yours"),
        (2, 1, "session.span", _span(gateway=peer_of(200), index=1), HIDDEN_SPAN, "not-yours"),
        (-1, 1, "session.span", _span(index=1), HIDDEN_SPAN, "not-yours"),
        (1, 0, "session.feed", FeedToken(SESSION, 1, 3, 1, peer_of(200)), b"", "not-yours"),
        (-1, 0, "session.feed", FeedToken(SESSION, 1, 3, 1, peer_of(200)), b"", "not-yours"),
        (2, 1, "session.feed", FeedToken(SESSION, 1, 3, 1, peer_of(200)), b"", "unknown-session"),
        # A stranger's own session with that name, or another peer's.
        (2, 0, "session.span", _span(), pack_tokens([1] * 3), "unknown-session"),
        (0, 1, "session.span", _span(gateway=peer_of(9), index=1), HIDDEN_SPAN, "unknown-session"),
        # Messages that even the right sender may not send.
        (-1, 0, "session.span", _span(epoch=2), pack_tokens([1] * 3), "stale-epoch"),
        (-1, 0, "session.span", _span(start=48), pack_tokens([1] * 3), "bad-message"),
        (-1, 0, "session.span", _span(), pack_tokens([1] * 2), "bad-message"),
        (-1, 0, "session.span", _span(), pack_tokens([1, 1, VOCABULARY]), "bad-message"),
        (
            0,
            1,
            "session.span",
            _span(gateway=peer_of(200), index=1),
            HIDDEN_SPAN + b"\0",
            "bad-message",
        ),
        (2, 0, "session.feed", FeedToken(SESSION, 1, 50, 1, peer_of(200)), b"", "bad-message"),
        (
            2,
            0,
            "session.feed",
            FeedToken(SESSION, 1, 3, VOCABULARY, peer_of(200)),
            b"",
            "bad-message",
        ),
    ],
)
async def test_a_message_from_the_wrong_place_changes_nothing(
    autojump_clock: object,
    sender: int,
    to: int,
    method: str,
    message: SpanMessage | FeedToken,
    payload: bytes,
    code: str,
) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        _post(swarm.nodes[sender], swarm.stages[to], method, message.header(), payload)
        await _settle()
        assert [refusal.code for refusal in swarm.wire.refusals] == [code]
        assert all(node.engine.spans == [] for node in swarm.stages)
        assert all(node.stage.sessions == 1 for node in swarm.stages)
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_same_messages_from_the_right_place_are_taken(autojump_clock: object) -> None:
    """Counterpart of the test above: nothing else about those messages is wrong."""
    swarm = FakeSwarm((2, 4, 6))
    header = _span(gateway=swarm.client.peer, token=False).header()

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first, second, head = swarm.stages
        _post(first, second, "session.span", header | {"index": 1}, HIDDEN_SPAN)
        _post(
            swarm.client, first, "session.span", _span(token=False).header(), pack_tokens([1] * 3)
        )
        _post(
            head,
            first,
            "session.feed",
            FeedToken(SESSION, 1, 3, 1, swarm.client.peer).header(),
            b"",
        )
        await _settle()
        # Only the client refuses: it is no gateway here and knows no session.
        assert {refusal.code for refusal in swarm.wire.refusals} == {"unknown-session"}
        assert [len(node.engine.spans) for node in swarm.stages] == [6, 7, 7]
        await _close_all(swarm)

    await _run(swarm, body)


def _failures(swarm: FakeSwarm) -> list[str]:
    return [post[3]["code"] for post in swarm.wire.posts if post[2] == "session.failed"]


def _lost(swarm: FakeSwarm) -> list[str]:
    """Return the neighbours that stages have reported as lost."""
    said = [post[3] for post in swarm.wire.posts if post[2] == "session.quiet"]
    return [header["peer"] for header in said if header["lost"]]


@pytest.mark.trio
async def test_an_engine_failure_is_reported_and_frees(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        swarm.stages[1].engine.fail_at = 3
        _post(swarm.client, swarm.stages[0], "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        assert _failures(swarm) == ["gap"]
        assert swarm.stages[1].stage.sessions == 0
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_span_the_engine_refuses_is_reported(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        swarm.stages[0].engine.refuse_spans = True
        _post(swarm.client, swarm.stages[0], "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        assert _failures(swarm) == ["bad-span"]
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_shard_taken_away_fails_its_sessions(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        swarm.stages[0].stage.withdraw()
        await _settle()
        assert _failures(swarm) == ["shard-gone"]
        swarm.assert_free()
        header = _open(swarm, session=b"t" * 16).header()
        code = await _refused(swarm.client, swarm.stages[0], "session.open", header)
        assert code == "no-shard"

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_event_after_the_end_is_ignored(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    engine = swarm.stages[0].engine

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        engine.closing = trio.Event()
        swarm.stages[0].stage.withdraw()
        await _settle()
        ((name, state),) = engine.states.items()
        state.on_event(TokenEvent(name, 1, 3, 1, 0.0, True, 0.0))
        state.on_event(FailedEvent(name, 1, "gap", "late"))
        await _settle()
        assert [post[2] for post in swarm.wire.posts] == ["session.failed"]
        engine.closing.set()
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_lost_gateway_frees_and_a_lost_neighbour_is_reported(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first, second, head = swarm.stages
        second.endpoint.lose(swarm.client.peer)
        first.endpoint.lose(peer_of(99))  # not a peer of any session
        head.endpoint.lose(second.peer)
        await _settle()
        assert [node.stage.sessions for node in swarm.stages] == [1, 0, 1]
        assert _lost(swarm) == [second.peer]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_quiet_neighbour_is_reported_and_ends_nothing(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first, second, head = swarm.stages
        second.endpoint.hush(swarm.client.peer)  # it may be the gateway that is back
        first.endpoint.hush(peer_of(99))  # not a peer of any session
        head.endpoint.hush(second.peer)
        head.endpoint.hear(second.peer)
        await _settle()
        said = [post for post in swarm.wire.posts if post[2] == "session.quiet"]
        assert [post[:2] for post in said] == [(head.peer, swarm.client.peer)] * 2
        assert [(post[3]["peer"], post[3]["quiet"]) for post in said] == [
            (second.peer, True),
            (second.peer, False),
        ]
        assert [node.stage.sessions for node in swarm.stages] == [1, 1, 1]
        assert _failures(swarm) == []
        second.endpoint.hear(swarm.client.peer)
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_nothing_opens_beside_a_quiet_neighbour(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        first, second = swarm.stages
        first.endpoint.hush(second.peer)
        header = _open(swarm).header()
        assert await _refused(swarm.client, first, "session.open", header) == "unreachable"
        first.endpoint.hear(second.peer)
        await _open_all(swarm)
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_push_that_finds_no_link_is_reported(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first, head = swarm.stages
        first.endpoint.cut.add(head.peer)
        _post(swarm.client, first, "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        assert _lost(swarm) == [head.peer]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_idle_session_is_closed_and_a_busy_one_is_not(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        for start in range(3):
            await trio.sleep(400)
            span = _span(start, 1, token=False)
            _post(swarm.client, stage, "session.span", span.header(), pack_tokens([7]))
        await _settle()
        assert stage.stage.sessions == 1
        await trio.sleep(700)
        assert _failures(swarm) == ["idle"]
        swarm.assert_free()

    with trio.fail_after(10_000):
        await swarm.run(body)


@pytest.mark.trio
async def test_closed_names_are_remembered_within_a_bound(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        for number in range(4100):
            await _call(swarm.client, stage, "session.close", Close(number.to_bytes(16)).header())
        for number in range(4):  # of 4,100 names, the four oldest are forgotten
            await _open_all(swarm, session=number.to_bytes(16))
        header = _open(swarm, session=(4).to_bytes(16)).header()
        assert await _refused(swarm.client, stage, "session.open", header) == "session-closed"

    await _run(swarm, body)


@pytest.mark.trio
async def test_sampling_and_stop_ids_reach_the_head_only(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        await _open_all(
            swarm, sampling=SessionSampling(1.0, 5, 0.5, 7)
        )  # seed 7 samples the stop id
        _post(swarm.client, swarm.stages[0], "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        first, head = (node.engine.spans for node in swarm.stages)
        assert (first[0].sampling, first[0].want) == (Sampling(), "hidden")
        assert (head[0].sampling.seed, head[0].want, head[0].steps) == (7, "token", 1)
        tokens = [post[3] for post in swarm.wire.posts if post[2] == "session.token"]
        assert [(item["token"], item["final"]) for item in tokens] == [(VOCABULARY - 1, True)]
        assert not [post for post in swarm.wire.posts if post[2] == "session.feed"]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_no_job_begins_beside_an_interactive_session(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        idle = _open(swarm, session=b"i" * 16, job="cd" * 32).header()
        assert await _refused(swarm.client, stage, "session.open", idle) == "busy"
        await _close_all(swarm)
        await _call(swarm.client, stage, "session.open", idle)
        assert (stage.stage.sessions, stage.stage.waited_for) == (1, 0)
        await _open_all(swarm, session=b"t" * 16)  # an interactive session opens beside it
        assert (stage.stage.sessions, stage.stage.waited_for) == (2, 1)
        for name in (b"i" * 16, b"t" * 16):
            await _call(swarm.client, stage, "session.close", Close(name).header())
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_idle_open_session_does_not_block_jobs(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one stranger with an idle session at each node could stop all jobs of a swarm."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        assert stage.stage.waited_for == 1
        await trio.sleep(10)
        assert (stage.stage.sessions, stage.stage.waited_for) == (1, 0)
        idle = _open(swarm, session=b"i" * 16, job="cd" * 32).header()
        await _call(swarm.client, stage, "session.open", idle)
        monkeypatch.setattr(stage.engine, "submit", stage.engine.spans.append)  # it takes long
        _post(swarm.client, stage, "session.span", _span().header(), pack_tokens([7] * 3))
        await trio.sleep(10)
        assert stage.stage.waited_for == 1, "it is being computed"
        for name in (SESSION, b"i" * 16):
            await _call(swarm.client, stage, "session.close", Close(name).header())

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_session_without_an_input_is_no_request(autojump_clock: object) -> None:
    """If another stage has refused the chain, the gateway opens a further one."""
    swarm = FakeSwarm((2, 6))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        await _close_all(swarm)
        for node in swarm.stages:
            assert all(count.requests == 0 for count in node.stage.meter.take().values())

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 6), (2, 4, 6)])
async def test_each_stage_counts_what_it_did(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)

    async def body(_: FakeSwarm) -> None:
        use = Use(swarm.client.peer, ROOT)
        await _open_all(swarm)
        ids = pack_tokens([7] * 2)
        first = _span(0, 2, token=False).header()
        _post(swarm.client, swarm.stages[0], "session.span", first, ids)
        _post(swarm.client, swarm.stages[0], "session.span", _span(2, 2).header(), ids)
        await _settle()
        for node in swarm.stages:
            counts = node.stage.meter.take()
            assert set(counts) == {use}
            count = counts[use]
            assert (count.requests, count.tokens_in, count.tokens_out) == (1, 4, 5)
            assert count.busy_ms > 0
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(("length", "tokens"), [(0, 3), (7, 5), (4, 3), (10**6, 7)])
async def test_guesses_count_as_tokens_once_they_are_known_to_be_right(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, length: int, tokens: int
) -> None:
    swarm = FakeSwarm((2, 6))
    first, head = swarm.stages

    async def body(_: FakeSwarm) -> None:
        assert first.parts is not None
        monkeypatch.setattr(head.engine, "submit", head.engine.spans.append)  # says nothing
        first.stage.serve(
            ShardProperties(
                ROOT, first.parts, "float32", HIDDEN, VOCABULARY, CONTEXT, KV, drafts=True
            )
        )
        await _open_all(swarm)

        def send(span: SpanMessage, *ids: int) -> None:
            _post(swarm.client, first, "session.span", span.header(), pack_tokens(ids))

        def feed(position: int, token: int) -> None:
            fed = FeedToken(SESSION, 1, position, token, swarm.client.peer)
            _post(head, first, "session.feed", fed.header(), b"")

        send(_span(), 7, 7, 7)
        send(_span(3, 4, draft=True), 1, 2, 3, 4)
        feed(3, 1)  # as guessed
        feed(4, 9)  # as not guessed: the tokens at 3, 4 and 5 follow from what was right
        send(_span(5, 4, draft=True, branch=4), 1, 2, 3, 4)
        await _settle()
        await _call(swarm.client, first, "session.close", Close(SESSION, length=length).header())
        (count,) = first.stage.meter.take().values()
        assert (count.tokens_in, count.tokens_out) == (3, tokens)
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_links_of_a_session_do_not_rest(autojump_clock: object) -> None:
    """The stages wait for each other and for the gateway with nothing open on their links."""
    swarm = FakeSwarm((2, 4, 6))
    first, second, last = swarm.stages

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        assert second.endpoint.watches(swarm.client.peer)
        assert second.endpoint.watches(first.peer) and second.endpoint.watches(last.peer)
        await _close_all(swarm)
        assert not second.endpoint.watches(first.peer)

    await _run(swarm, body)


# Several shards of one node.


async def _two_stages(swarm: FakeSwarm) -> tuple[Node, list[Open]]:
    """Serve layers 0:2 and 4:6 at the first node and 2:4 at the second. Return the first node, and
    the messages that open its two stages."""
    near, far = swarm.stages
    parts = [Parts(True, 0, 2, False), Parts(False, 2, 4, False), Parts(False, 4, 6, True)]
    near.stage.serve(_held(parts[0]), 0)
    near.stage.serve(_held(parts[2]), 1)
    far.stage.serve(_held(parts[1]), 0)
    stages = (near.peer, far.peer, near.peer)
    opens = [
        _open(swarm, 0, parts=part, stages=stages, index=index) for index, part in enumerate(parts)
    ]
    for node, message in zip((near, far, near), opens, strict=True):
        await _call(swarm.client, node, "session.open", message.header())
    return near, [opens[0], opens[2]]


def _held(parts: Parts) -> ShardProperties:
    return ShardProperties(ROOT, parts, "float32", HIDDEN, VOCABULARY, CONTEXT, 4 * CONTEXT)


@pytest.mark.trio
async def test_a_node_may_be_two_stages_of_a_chain(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        near, _opens = await _two_stages(swarm)
        assert near.stage.sessions == 2
        assert [terms.shard for terms in near.engine.terms] == [0, 1]
        _post(swarm.client, near, "session.span", _span(token=False).header(), pack_tokens([7] * 3))
        await _settle()
        spans = [post for post in swarm.wire.posts if post[2] == "session.span"]
        assert [span[3]["index"] for span in spans[1:]] == [1, 2]
        assert [span.count for span in near.engine.spans] == [3, 3]
        await _close_all(swarm)
        assert len(near.engine.states) == 0

    await _run(swarm, body)


@pytest.mark.trio
async def test_without_one_shard_only_its_sessions_end(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        near, opens = await _two_stages(swarm)
        near.stage.withdraw(1)
        await _settle()
        assert near.stage.sessions == 1
        assert near.stage.log(swarm.client.peer, SESSION, 0) is not None
        header = replace(opens[1], session=b"t" * 16).header()
        assert await _refused(swarm.client, near, "session.open", header) == "no-shard"
        header = replace(opens[0], session=b"t" * 16).header()
        await _call(swarm.client, near, "session.open", header)
        await _call(swarm.client, near, "session.close", Close(b"t" * 16).header())
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_each_shard_has_room_of_its_own(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        near, opens = await _two_stages(swarm)
        near.stage.serve(dataclasses.replace(_held(opens[0].parts), root=OTHER), 2)
        rooms = [near.stage.room(root, opens[0].parts, PeerId(near.peer)) for root in (ROOT, OTHER)]
        assert rooms == [4 * CONTEXT - 64, 4 * CONTEXT]
        assert near.stage.room(ROOT, Parts(False, 3, 4, False)) == 0
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_adapter_is_loaded_when_the_engine_lacks_it(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6), adapters=True)
    stage = swarm.stages[1]

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm, 1, adapter="a" * 64).header()
        await _call(swarm.client, stage, "session.open", header)
        again = _open(swarm, 1, adapter="a" * 64, session=b"t" * 16).header()
        await _call(swarm.client, stage, "session.open", again)
        assert swarm.adapters.delivered == [("a" * 64, stage.parts)]  # only once
        assert [each.adapter for each in stage.engine.terms] == ["a" * 64] * 2
        for name in (SESSION, b"t" * 16):
            await _call(swarm.client, stage, "session.close", Close(name).header())
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("bad-adapter", "bad-adapter"),
        ("no-memory", "no-memory"),
        ("digest-mismatch", "no-adapter"),
        ("bad-tensor", "no-adapter"),
        ("worker-crashed", "worker-crashed"),
    ],
)
async def test_an_adapter_that_the_engine_refuses_ends_only_its_session(
    autojump_clock: object, code: str, told: str
) -> None:
    swarm = FakeSwarm((2, 4, 6), adapters=True)
    stage = swarm.stages[1]
    stage.engine.refuse_adapter = code

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        header = _open(swarm, 1, adapter="a" * 64, session=b"t" * 16).header()
        assert await _refused(swarm.client, stage, "session.open", header) == told
        damaged = code in ("digest-mismatch", "bad-tensor")
        assert swarm.adapters.dropped == damaged * ADAPTER_LOADS  # and fetched again each time
        _post(swarm.client, swarm.stages[0], "session.span", _span().header(), pack_tokens([7] * 3))
        await _settle()
        assert [post for post in swarm.wire.posts if post[2] == "session.token"]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_adapter_that_cannot_be_had_is_refused(autojump_clock: object) -> None:
    """If no node has it, and if others evict it again and again."""
    swarm = FakeSwarm((2, 4, 6), adapters=True)
    stage = swarm.stages[1]

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm, 1, adapter="f" * 64).header()
        assert await _refused(swarm.client, stage, "session.open", header) == "no-adapter"
        assert len(swarm.adapters.delivered) == 1
        stage.engine.adapters = _Forgetful()
        header = _open(swarm, 1, adapter="a" * 64).header()
        assert await _refused(swarm.client, stage, "session.open", header) == "no-adapter"
        assert len(swarm.adapters.delivered) == 1 + ADAPTER_LOADS
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_without_a_source_adapters_are_refused(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))

    async def body(_: FakeSwarm) -> None:
        header = _open(swarm, 1, adapter="a" * 64).header()
        refused = await _refused(swarm.client, swarm.stages[1], "session.open", header)
        assert refused == "no-adapter" and not swarm.adapters.delivered

    await _run(swarm, body)


class _Forgetful(set[str]):
    def __contains__(self, _root: object) -> bool:
        return False


@pytest.mark.trio
async def test_a_gateway_that_grew_beyond_its_share_gives_it_back(autojump_clock: object) -> None:
    """It reserves a single position per session, and then fills the memory."""
    swarm = FakeSwarm((2,))
    stage, other, third = swarm.stages[0], Node(swarm, 201, None), Node(swarm, 202, None)
    stage.serve(Parts(True, 0, 2, True), kv_tokens=4 * CONTEXT)
    stage.engine.kv_tokens = KV  # this engine reserves everything at once

    async def opening(sender: Node, number: int, soon: int, **changes: Any) -> str:
        changes |= {"session": number.to_bytes(16), "tokens": CONTEXT, "soon": soon}
        try:
            await _call(sender, stage, "session.open", _open(swarm, **changes).header())
        except CallRefused as error:
            return error.code
        return "open"

    async def body(_: FakeSwarm) -> None:
        for number in range(4):
            assert await opening(swarm.client, number, 1) == "open"
            span = _span(0, 1900, session=number.to_bytes(16), token=False)
            _post(swarm.client, stage, "session.span", span.header(), pack_tokens([7] * 1900))
        await _settle()
        assert _room(stage, other.peer) < 200
        assert await opening(swarm.client, 9, 500) == "no-memory", "it has its share"
        assert await opening(other, 1, 500, job="cd" * 32) != "open", "a job takes nothing"
        assert stage.stage.sessions == 4
        assert await opening(other, 1, 500) == "open"
        await _settle()
        failed = [post for post in swarm.wire.posts if post[2] == "session.failed"]
        assert [(post[1], post[3]["code"]) for post in failed] == [(swarm.client.peer, "preempted")]
        assert failed[0][3]["session"] == (3).to_bytes(16), "the youngest"
        assert await opening(third, 2, 1900) == "open"
        assert await opening(other, 3, 1300) == "open"
        assert stage.stage.sessions == 5
        assert await opening(swarm.client, 9, 200) == "no-memory", "it is back at its share"
        assert await opening(stage, 3, CONTEXT, job="cd" * 32) != "open", "a job of the owner"
        assert await opening(stage, 3, CONTEXT) == "open", "the owner comes first"

    await _run(swarm, body)


class _Asking:
    """Opens sessions of several gateways at one stage with room for `kv_tokens` positions."""

    def __init__(self, kv_tokens: int) -> None:
        self.swarm = FakeSwarm((2,))
        self.stage = self.swarm.stages[0]
        self.others = [Node(self.swarm, number, None) for number in range(201, 206)]
        self.stage.serve(Parts(True, 0, 2, True), kv_tokens=kv_tokens)
        self.stage.engine.kv_tokens = KV  # this engine reserves everything at once

    async def open(self, sender: Node, number: int, soon: int, **changes: Any) -> str:
        changes = {"tokens": CONTEXT} | changes | {"session": number.to_bytes(16), "soon": soon}
        try:
            message = _open(self.swarm, **changes)
            await _call(sender, self.stage, "session.open", message.header())
        except CallRefused as error:
            return error.code
        return "open"

    def speak(self, sender: Node, number: int) -> None:
        """Send the first position of a prompt."""
        span = _span(0, 1, session=number.to_bytes(16), token=False)
        _post(sender, self.stage, "session.span", span.header(), pack_tokens([7]))

    async def close(self, sender: Node, number: int) -> None:
        await _call(sender, self.stage, "session.close", Close(number.to_bytes(16)).header())

    def ended(self) -> list[tuple[PeerId, int]]:
        """Gateways and numbers of the sessions that were preempted."""
        posts = [post for post in self.swarm.wire.posts if post[2] == "session.failed"]
        assert {post[3]["code"] for post in posts} <= {"preempted"}
        return [(post[1], int.from_bytes(post[3]["session"])) for post in posts]


@pytest.mark.trio
async def test_one_session_may_not_have_all_memory_for_longer_than_its_turn(
    autojump_clock: object,
) -> None:
    asking = _Asking(CONTEXT)
    hoarder, other, *_ = asking.others

    async def body(_: FakeSwarm) -> None:
        assert await asking.open(hoarder, 1, CONTEXT) == "open"
        asking.speak(hoarder, 1)  # a session that computes nothing ends sooner
        await trio.sleep(KV_TURN / 2)
        asking.speak(hoarder, 1)
        await trio.sleep(KV_TURN / 2 - 1)
        assert await asking.open(other, 2, 100) == "no-memory"
        await trio.sleep(2)
        assert await asking.open(other, 2, 100, job="cd" * 32) != "open", "a job takes nothing"
        assert not asking.ended()
        assert await asking.open(other, 2, 100) == "open"
        assert asking.ended() == [(hoarder.peer, 1)]
        await trio.sleep(2 * KV_TURN)
        asking.speak(other, 2)
        await _settle()
        assert await asking.open(hoarder, 3, CONTEXT) == "no-memory"
        assert asking.ended() == [(hoarder.peer, 1)], "a session within the share stays"

    await _run(asking.swarm, body, 10 * KV_TURN)


@pytest.mark.trio
async def test_a_large_request_is_admitted_although_small_ones_keep_coming(
    autojump_clock: object,
) -> None:
    asking = _Asking(4 * CONTEXT)
    one, two, three, large, last = asking.others
    small = (one, two, three)

    async def body(_: FakeSwarm) -> None:
        held: list[tuple[Node, int]] = []
        for number in range(12):
            assert await asking.open(small[number % 3], number, CONTEXT // 4) == "open"
            held.append((small[number % 3], number))
        for number in range(12, 100):
            if await asking.open(large, 1000, 2 * CONTEXT - 100, tokens=2 * CONTEXT) == "open":
                break
            await asking.close(*held.pop(0))
            sender = small[number % 3]
            if await asking.open(sender, number, CONTEXT // 4) == "open":
                held.append((sender, number))
        else:
            raise AssertionError("the large request never had its turn")
        assert number < 30 and not asking.ended()
        await asking.close(*held.pop(0))
        await trio.sleep(QUEUED_TIME + 1)
        assert await asking.open(last, 2000, 100) == "open", "what is free is used"

    asking.swarm.stages[0].stage.table.shards[0].shard = dataclasses.replace(
        asking.swarm.stages[0].stage.table.shards[0].shard, context=4 * CONTEXT
    )
    await _run(asking.swarm, body)


@pytest.mark.trio
async def test_memory_is_reserved_only_for_requests_that_are_repeated(
    autojump_clock: object,
) -> None:
    asking = _Asking(CONTEXT)
    first, second, third, *_ = asking.others

    async def body(_: FakeSwarm) -> None:
        assert await asking.open(first, 1, CONTEXT // 2) == "open"
        assert await asking.open(second, 2, CONTEXT) == "no-memory"
        assert await asking.open(third, 3, 100) == "no-memory", "what is free is for the second"
        assert await asking.open(asking.stage, 4, 100) == "open", "the owner does not queue"
        await trio.sleep(QUEUED_TIME + 1)
        assert await asking.open(third, 3, 100) == "open"
        for number in range(QUEUED_REQUESTS + 10):
            assert await asking.open(second, 100 + number, CONTEXT - number % 2) == "no-memory"
            user = number.to_bytes(4)
            assert await asking.open(second, 500 + number, CONTEXT, user=user) == "no-memory"
        queue = asking.stage.stage.table.shards[0].queue
        assert len(queue.waiting) <= QUEUED_REQUESTS

    await _run(asking.swarm, body)


@pytest.mark.trio
async def test_the_owner_of_the_machine_takes_the_memory_that_it_needs(
    autojump_clock: object,
) -> None:
    asking = _Asking(CONTEXT)
    first, second, *_ = asking.others

    async def body(_: FakeSwarm) -> None:
        assert await asking.open(second, 3, CONTEXT // 5, job="cd" * 32) == "open"
        assert await asking.open(first, 1, CONTEXT // 5) == "open"
        assert await asking.open(second, 2, CONTEXT // 5) == "open"
        assert await asking.open(asking.stage, 4, 1300) == "open"
        ended = [(second.peer, 3), (second.peer, 2)]
        assert sorted(asking.ended()) == sorted(ended), "jobs, the youngest, and no more"
        assert await asking.open(asking.stage, 5, CONTEXT) == "no-memory", "it has it itself"
        assert await asking.open(first, 6, CONTEXT) == "no-memory"

    await _run(asking.swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("asker", ["owner", "other"])
async def test_jobs_of_the_owner_end_for_requests_that_need_their_memory(
    autojump_clock: object, asker: str
) -> None:
    asking = _Asking(CONTEXT)
    node = asking.stage if asker == "owner" else asking.others[0]

    async def body(_: FakeSwarm) -> None:
        for number in (1, 2, 3):
            room = CONTEXT // 2 if number == 1 else CONTEXT // 5
            assert await asking.open(asking.stage, number, room, job="cd" * 32) == "open"
        assert await asking.open(node, 4, CONTEXT // 3) == "open"
        assert asking.stage.stage.sessions == 2, "the youngest two have ended, and no more"

    await _run(asking.swarm, body)


@pytest.mark.trio
async def test_the_engine_is_told_of_requests_while_a_job_has_sessions(
    autojump_clock: object,
) -> None:
    asking = _Asking(CONTEXT)
    stage = asking.stage.stage

    async def body(_: FakeSwarm) -> None:
        stage.hold()
        assert asking.stage.engine.holds == 0, "nothing would wait"
        assert await asking.open(asking.stage, 1, 100, job="cd" * 32) == "open"
        stage.hold()
        assert asking.stage.engine.holds == 1

    await _run(asking.swarm, body)


@pytest.mark.trio
async def test_a_span_whose_result_no_lane_takes_is_refused_at_once(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = FakeSwarm((2, 4, 6))
    monkeypatch.setattr(inputs, "PASSED_BYTES", 3 * HIDDEN * 4)

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        first = swarm.stages[0]
        for count, codes in ((3, []), (4, ["bad-message"])):
            message = _span(0, count, token=False)
            _post(swarm.client, first, "session.span", message.header(), pack_tokens([7] * count))
            await _settle()
            refused = [each.code for each in swarm.wire.refusals if each.code != "unknown-session"]
            assert refused == codes
            assert len(first.engine.spans) == 1
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_open_waits_until_the_memory_that_it_takes_is_free(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    stage, other = swarm.stages[0], Node(swarm, 201, None)
    stage.serve(Parts(True, 0, 2, True), kv_tokens=2 * CONTEXT)
    opened: list[float] = []

    async def opening() -> None:
        await _call(other, stage, "session.open", _open(swarm).header())
        opened.append(trio.current_time())

    async def body(_: FakeSwarm) -> None:
        for number in range(2):
            header = _open(swarm, session=number.to_bytes(16), tokens=CONTEXT, soon=900).header()
            await _call(swarm.client, stage, "session.open", header)
            span = _span(0, 1999, session=number.to_bytes(16), token=False)
            _post(swarm.client, stage, "session.span", span.header(), pack_tokens([7] * 1999))
        await _settle()
        stage.engine.closing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opening)
            await _settle()
            assert len(stage.engine.states) == 2 and not opened
            stage.engine.closing.set()
        assert opened and len(stage.engine.states) == 2

    await _run(swarm, body)


@pytest.mark.trio
async def test_sessions_that_are_closed_while_they_open_count(autojump_clock: object) -> None:
    """The engine is slow meanwhile. Otherwise their number would have no limit."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    others = [Node(swarm, 201 + number, None) for number in range(13)]
    codes: list[str] = []

    async def one(sender: Node, number: int) -> None:
        header = _open(swarm, session=number.to_bytes(16)).header()
        codes.append(await _refused(sender, stage, "session.open", header))

    async def body(_: FakeSwarm) -> None:
        slow = stage.engine.opening = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(300):
                sender = others[number % 13]
                nursery.start_soon(one, sender, number)
                await _settle()
                close = Close(number.to_bytes(16)).header()
                await _call(sender, stage, "session.close", close)
            assert set(codes) == {"too-many-sessions"} and len(codes) == 300 - 64
            slow.set()
        assert codes.count("session-closed") == 64
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("limit", ["spans", "bytes"])
async def test_the_spans_that_wait_are_limited(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """They occupy memory of the stage and of its engine."""
    swarm = FakeSwarm((2, 4, 6))
    stage, before = swarm.stages[1], swarm.stages[0]
    most = SPANS_WAITING if limit == "spans" else 5
    if limit == "bytes":
        monkeypatch.setattr("shoal.tasks.inference.serving.inputs.SPANS_BYTES", 5 * 3 * 8)

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        submit, held = stage.engine.submit, list[Span]()
        stage.engine.submit = held.append  # type: ignore[method-assign,assignment]
        span = _span(0, 3, index=1, gateway=swarm.client.peer, token=False).header()
        for _number in range(most):
            _post(before, stage, "session.span", span, bytes(24))
        await _settle()
        assert len(held) == most and stage.stage.sessions == 1
        stage.engine.submit = submit  # type: ignore[method-assign]
        for each in held:
            submit(each)
        await _settle()
        for _number in range(most):  # what was answered does not count any more
            _post(before, stage, "session.span", span, bytes(24))
        await _settle()
        assert stage.stage.sessions == 1
        stage.engine.submit = held.append  # type: ignore[method-assign,assignment]
        for _number in range(most + 1):
            _post(before, stage, "session.span", span, bytes(24))
        await _settle()
        (failed,) = [post for post in swarm.wire.posts if post[2] == "session.failed"]
        assert failed[3]["code"] == "too-many-spans" and stage.stage.sessions == 0
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
async def test_one_gateway_cannot_make_a_stage_load_adapters_all_the_time(
    autojump_clock: object,
) -> None:
    """The engine computes nothing while it loads one."""
    swarm = FakeSwarm((2,), adapters=True)
    stage = swarm.stages[0]

    async def load(sender: Node, number: int, name: bytes = b"") -> str:
        name = name or number.to_bytes(16)
        header = _open(swarm, session=name, adapter=f"{number:064x}").header()
        try:
            await _call(sender, stage, "session.open", header)
        except CallRefused as error:
            return error.code
        await _call(sender, stage, "session.close", Close(name).header())
        return "open"

    async def body(_: FakeSwarm) -> None:
        burst, rate = ADAPTERS_ASKED
        answers = [await load(swarm.client, number) for number in range(burst + 2)]
        assert answers == ["open"] * burst + ["busy"] * 2
        assert await load(swarm.client, 0, SESSION) == "open", "what is loaded costs nothing"
        assert [await load(stage, 99 + number) for number in range(20)] == ["open"] * 20
        await trio.sleep(1 / rate)
        assert await load(swarm.client, 98) == "open"

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_session_that_is_preempted_before_its_open_is_answered_is_refused_as_that(
    autojump_clock: object,
) -> None:
    """Its gateway then waits, instead of failing the request."""
    swarm = FakeSwarm((2,))
    stage = swarm.stages[0]
    stage.engine.opening = trio.Event()
    codes: list[str] = []

    async def one() -> None:
        codes.append(await _refused(swarm.client, stage, "session.open", _open(swarm).header()))

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await _settle()
            stage.engine.preempt_all()
            assert stage.engine.opening is not None
            stage.engine.opening.set()
        assert codes == ["preempted"]
        await _settle()
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_adapters_that_do_not_exist_leave_places_for_those_that_do(
    autojump_clock: object,
) -> None:
    """Each identity asks as often as it may for adapters that are not found."""
    swarm = FakeSwarm((2,), adapters=True)
    stage, known = swarm.stages[0], Node(swarm, 150, None)
    liars = [Node(swarm, number, None) for number in range(201, 231)]
    swarm.adapters.missing = {f"{number:064x}" for number in range(1000)}
    answers: list[str] = []

    async def ask(sender: Node, number: int, root: str) -> str:
        header = _open(swarm, session=number.to_bytes(16), tokens=16, adapter=root).header()
        try:
            await sender.courier.call(stage.peer, "session.open", header, timeout=30)
        except CallRefused as error:
            answers.append(error.code)
            return error.code
        return "open"

    async def body(_: FakeSwarm) -> None:
        assert await ask(known, 1, "1" * 64) == "open"
        async with trio.open_nursery() as nursery:
            for number in range(300):
                root = f"{number:064x}"
                nursery.start_soon(ask, liars[number % 30], 100 + number, root)
            await _settle()
            assert len(answers) == 300 - ADAPTER_WAITS_UNPROVEN
            assert set(answers) == {"busy", "too-many-sessions"}
            began = trio.current_time()
            assert await ask(known, 2, "2" * 64) == "open"
            assert await ask(stage, 3, "3" * 64) == "open"
            assert await ask(liars[0], 4, "4" * 64) == "busy"
            for number in range(20):
                nursery.start_soon(ask, known, 700 + number, f"{500 + number:064x}")
            await _settle()
            sessions = stage.stage.sessions - 3
            assert sessions == ADAPTER_WAITS_UNPROVEN + ADAPTER_WAITS_OF_ONE
            assert trio.current_time() < began + 10
        assert await ask(liars[0], 5, "5" * 64) == "open", "the places are free again"

    await _run(swarm, body)


PACKED = HIDDEN + 2  # bytes of a row


@pytest.mark.trio
async def test_packed_hidden_states_have_their_own_size_and_names(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = FakeSwarm((2, 4))
    first, second = swarm.stages

    async def body(_: FakeSwarm) -> None:
        found = []
        for activations in ("exact", "int8"):
            for index, node in enumerate(swarm.stages):
                order = _open(swarm, index, activations=activations).header()
                reply = await swarm.client.courier.call(
                    node.peer, "session.open", order, NAMES[:48], timeout=5
                )
                assert reply.header.get("activations", "exact") == activations
            found.append([node.engine.terms[-1] for node in swarm.stages])
            if activations == "exact":
                await _close_all(swarm)
                swarm.stages[0].stage.table.closed.clear()
                swarm.stages[1].stage.table.closed.clear()
        exact, packed = found
        assert [terms.packed for terms in exact + packed] == [False, False, True, True]
        assert exact[0].names == packed[0].names  # the first stage has tokens
        assert exact[1].names != packed[1].names
        header = _span(gateway=swarm.client.peer, index=1, token=False).header()
        for size, refused in ((3 * HIDDEN * 4, 1), (3 * PACKED + 1, 2)):
            _post(first, second, "session.span", header, bytes(size))
            await _settle()
            assert [each.code for each in swarm.wire.refusals] == ["bad-message"] * refused
        assert second.engine.spans == []
        taken: list[Span] = []
        monkeypatch.setattr(second.engine, "submit", taken.append)
        _post(first, second, "session.span", header, bytes(3 * PACKED))
        await _settle()
        assert [len(span.hidden or b"") for span in taken] == [3 * PACKED]
        await _close_all(swarm)

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("small", [False, True])
async def test_a_stage_tells_the_rate_of_a_slow_link(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    if not small:
        monkeypatch.setattr(slowlinks, "PART_BYTES", 0)
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        await _open_all(swarm)
        for start in (0, 17):
            header = _span(start=start, count=17, token=False).header()
            _post(swarm.client, swarm.stages[0], "session.span", header, pack_tokens([1] * 17))
            await _settle()
            swarm.wire.backlog = 1000
            await trio.sleep(1)
        for node, slow in zip(swarm.stages, (not small, False), strict=True):
            reply = await _call(swarm.client, node, "session.close", Close(SESSION).header())
            told: Any = reply.header.get("slow", ())
            assert [each[0] for each in told] == [swarm.stages[1].peer] * slow
        swarm.assert_free()

    await _run(swarm, body)


class _Offered:
    """Connector that notes how many names it was offered."""

    def __init__(self) -> None:
        self.names: list[int] = []

    async def brought(self, wanted: WantingSession) -> tuple[int, PeerId | None]:
        await trio.lowlevel.checkpoint()
        return wanted.cached, None

    async def beside(self, wanted: WantingSession, ready: trio.Event) -> None:
        raise NotImplementedError

    def refute(self, peer: PeerId, gateway: PeerId) -> None:
        raise NotImplementedError

    def keep(self, session: bytes) -> None:
        raise NotImplementedError

    def saved(self, origin: KvOrigin, names: bytes) -> None:
        self.names.append(len(names) // NAME_BYTES)


@pytest.mark.trio
async def test_positions_that_only_wait_are_not_offered_to_others(autojump_clock: object) -> None:
    """A gateway could fill the index of a node with KV that does not exist."""
    offered = _Offered()
    swarm = FakeSwarm((8,), connector=offered)
    (stage,) = swarm.stages
    served = stage.stage.table.shards[0]
    served.shard = dataclasses.replace(served.shard, kv_heads=1)

    async def body(swarm: FakeSwarm) -> None:
        for start in (0, 960):
            await _open_all(swarm, tokens=1000, soon=16)
            span = SpanMessage(SESSION, 1, 0, start, 33, False, 0.0)
            link = swarm.client.endpoint.link(stage.peer)
            assert link is not None
            link.deliver("session.span", span.header(), pack_tokens([1] * 33))
            if start == 0:
                await trio.sleep(1)
            names = b"n" * (62 * NAME_BYTES)
            await link.call("session.close", Close(SESSION, 0).header(), names, timeout=5)
            stage.stage.table.closed.clear()

    await _run(swarm, body)
    assert offered.names == [2, 0]
