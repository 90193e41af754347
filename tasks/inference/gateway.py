"""Gateway of sessions: sends a prompt through a chain of stages and returns the text of the answer.

Tokens do not pass through the gateway on their way from the head (the last stage) to the first
stage. The gateway sends the prompt to the first stage, and the stages then generate without it
until the head or the gateway stops them. Spec: docs/spec/session.md.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import trio

from ...state.directory import Directory
from ...transport.errors import LinkClosed
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.link.link import Link
from ..defaults import (
    MAX_NEW_TOKENS,
    MEMORY_LOOK,
    OPEN_ATTEMPTS,
    PREFILL_BYTES,
    PREFILL_TOKENS,
    QUIET_LOOK,
    RETURN_LOOK,
    SEEK_TIME,
    SPANS_UNDER_WAY,
    TOKEN_TIMEOUT,
)
from ..drafting.sessions import Drafting
from ..drafting.speculation import DraftCounts
from ..engine.interface import SessionId
from ..errors import NoRoute, PromptTooLong, SessionError, StageLost
from ..text.process import ChatTurn, TextDelta
from .chain import Chains, StageRefused
from .courier import Courier
from .embedding import Embedder, PooledAnswer, Vector
from .generation import (
    Answer,
    Arrived,
    Emit,
    GatewayEvent,
    GenerateRequest,
    GenerationRun,
    Item,
    Model,
    Pooled,
    Routed,
    RunTerms,
    Summary,
)
from .recovery import FULL, LOST_STATE, Crashes, not_back, patience, returning
from .routing import Hop, Members, Preference, find_route
from .session import (
    SESSION_BYTES,
    Failed,
    PooledSpan,
    Quiet,
    SampledToken,
    SpanMessage,
    SpanProgress,
    pack_tokens,
    unpack_states,
)

__all__ = [
    "ChatTurn",
    "Gateway",
    "GatewayEvent",
    "GenerateRequest",
    "Model",
    "ModelSource",
    "Routed",
    "Summary",
    "TextDelta",
]


class ModelSource(Protocol):
    """Provider of models for the gateway, implemented in `models.py`."""

    def use(self, name: str) -> AbstractAsyncContextManager[Model]:
        """Provide a model by name or root until the block ends.

        Raises ModelError or TextError if the model cannot be found, fetched or loaded.
        """
        ...


FindAdapter = Callable[[str, Model], Awaitable[str]]
"""Returns the root of the adapter with a name (or root), after checking that it fits a model.

Raises SessionError `no-adapter` or `bad-adapter`.
"""


Seek = Callable[[str], Awaitable[bool]]
"""Establishes links to nodes that serve layers of a model (by root) and are not members yet.

Returns whether any were found. Their records arrive one round trip later.
"""


async def _no_adapters(_text: str, _model: Model) -> str:
    await trio.lowlevel.checkpoint()
    raise SessionError("no-adapter", "this gateway has no adapters")


async def _nobody(_root: str) -> bool:
    await trio.lowlevel.checkpoint()
    return False


@dataclass(slots=True)
class _Talk:
    """State of one request, with the chain that is open for it."""

    model: Model
    request: GenerateRequest
    ids: list[int]
    new: int  # most tokens that all chains of the request together may generate
    answer: Answer | PooledAnswer
    run: GenerationRun | None = None  # the open chain
    refused: dict[PeerId, SessionError] = field(default_factory=dict)
    lost: set[PeerId] = field(default_factory=set)
    crashes: Crashes = field(default_factory=Crashes)
    drafts: DraftCounts = field(default_factory=DraftCounts)

    @property
    def must_yield(self) -> bool:
        """Whether the request is for a job, over which an interactive request has priority now."""
        turn = self.request.turn
        return turn is not None and turn.is_over()

    @property
    def terms(self) -> RunTerms:
        """The purpose of the request's sessions."""
        request = self.request
        pooled = isinstance(self.answer, PooledAnswer)
        return RunTerms(request.job, request.user, pooled, request.top)


class Gateway:
    """Gateway that answers this node's requests over chains of stages."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        directory: Directory,
        models: ModelSource,
        *,
        seek: Seek = _nobody,
        find_adapter: FindAdapter = _no_adapters,
        drafting: Drafting | None = None,
    ) -> None:
        self._host = host
        self._drafting = drafting or Drafting()
        self._seek = seek
        self._find_adapter = find_adapter
        self._courier = courier
        self._directory = directory
        self._models = models
        self._runs: dict[SessionId, tuple[GenerationRun, Model]] = {}
        self._chains = Chains(host, courier)
        self.embedder = Embedder(models.use, self._pool)
        """Answers requests for embeddings."""
        self._waited_for = 0
        self.answers = 0  # answers completed since the start, and their tokens
        self.answer_tokens = 0
        courier.handle("session.token", self._on_token)
        courier.handle("session.progress", self._on_progress)
        courier.handle("session.pooled", self._on_pooled)
        courier.handle("session.failed", self._on_failed)
        courier.handle("session.quiet", self._on_quiet)
        courier.on_link_lost(self._link_lost)
        courier.on_link_quiet(self._link_quiet)
        courier.watch_links(self._waits_for)

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._runs)

    @property
    def waited_for(self) -> int:
        """Number of interactive requests in progress. Requests for jobs do not count."""
        return self._waited_for

    def avoided(self) -> Collection[PeerId]:
        """Return the stages that recently failed to open a session, which are used only as a last
        resort."""
        return self._chains.avoided()

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary:
        """Answer one request. `emit` receives the chain, and then the text as it is generated.

        If the call is cancelled or `emit` raises, the session is closed on every stage. Raises
        PromptTooLong, SessionError (codes: docs/spec/session.md), NoRoute, TextError or ModelError
        if no complete answer can be generated.
        """
        began = self._host.now()
        self._waited_for += request.turn is None
        try:
            async with self._models.use(request.model) as model:
                if request.adapter:
                    root = await self._find_adapter(request.adapter, model)
                    model = replace(model, adapter=root)
                summary = await self._generate(model, request, emit, began)
            self.answers += 1
            self.answer_tokens += summary.tokens
            return summary
        finally:
            self._waited_for -= request.turn is None

    async def _generate(
        self, model: Model, request: GenerateRequest, emit: Emit, began: float
    ) -> Summary:
        ids = await self._encode(model, request)
        new = _room(model, len(ids), request.max_tokens)
        answer = Answer(
            ids, model, request, emit, began, at_context=len(ids) + new == model.context
        )
        talk = _Talk(model, request, ids, new, answer)
        try:
            await self._start(talk)
            await answer.prepare()
            while talk.run is None or not await self._converse(talk):
                await self._give_way(talk)
            await self._drafting.end(request.user, model.identity, ids)
            return replace(answer.summary(), drafts=talk.drafts)
        finally:
            await self._leave(talk)

    async def _pool(self, model: Model, ids: list[int], user: str) -> Vector:
        """Return the embedding of a prompt. Raises what `generate` raises."""
        answer = PooledAnswer(len(ids), model.hidden)
        talk = _Talk(model, GenerateRequest(model.root, user=user), ids, 0, answer)
        self._waited_for += 1
        try:
            await self._start(talk)
            while talk.run is None or not await self._converse(talk):
                await self._give_way(talk)
            return answer.vector()
        finally:
            self._waited_for -= 1
            await self._leave(talk)

    async def _encode(self, model: Model, request: GenerateRequest) -> list[int]:
        """Return the token ids of the request's prompt or conversation.

        Raises SessionError `bad-request` if it has neither or is empty.
        """
        if request.messages is None and request.prompt is None:
            raise SessionError("bad-request", "expected a prompt or messages")
        if request.raw:
            ids = await model.text.encode(request.prompt or "")
        elif request.messages is not None:
            ids = await model.text.encode_chat(request.messages)
        else:
            ids = await model.text.encode_chat([ChatTurn("user", request.prompt or "")])
        if not ids:
            raise SessionError("bad-request", "the prompt is empty")
        return ids

    # Choosing and opening a chain.

    async def _start(self, talk: _Talk, awaited: Collection[PeerId] = ()) -> None:
        """Open a chain unless one is already open, and announce it to the client.

        If stages refuse because their engines restart or load, waits for them. Stages in `awaited`
        are known to do so. Returns without a chain if the job must yield meanwhile. Raises
        SessionError if stages refuse or do not return in time, and NoRoute if no chain covers the
        model.
        """
        began, pause = self._host.now(), RETURN_LOOK
        while talk.run is None:
            try:
                await self._open_any(talk, awaited)
            except (SessionError, NoRoute) as error:
                # A node may be too busy with loading to be heard, and then it is on no route.
                quiet = set(filter(self._courier.is_quiet, awaited))
                awaited = returning(talk.refused) or quiet
                if not awaited:
                    raise
                if self._host.now() >= began + patience(talk.refused, talk.crashes.preempted):
                    raise not_back(error, self._host.now() - began) from None
                full = any(each.code == FULL for each in talk.refused.values())
                talk.refused.clear()
                await trio.sleep(pause)
                pause = min(2 * pause, MEMORY_LOOK) if full else RETURN_LOOK
                if talk.must_yield:
                    return
        await talk.answer.begin(talk.run.route)

    async def _open_any(self, talk: _Talk, awaited: Collection[PeerId]) -> None:
        """Open the best chain, or another one if its stages refuse: OPEN_ATTEMPTS chains at most.

        Stages in `awaited` are opened before the others, which need not reserve KV until these have
        returned. Raises SessionError if stages refuse, and NoRoute if no chain covers the model.
        """
        while talk.run is None:
            run = await self._some_run(talk)
            try:
                await self._open(talk, run, set(run.peers) & set(awaited) or run.peers)
            except StageRefused:
                if len(talk.refused) >= OPEN_ATTEMPTS:
                    raise _told(talk, talk.refused[next(reversed(talk.refused))]) from None

    async def _some_run(self, talk: _Talk) -> GenerationRun:
        """Return a session over the best chain. If the members form no chain, look for more members
        first.

        Raises NoRoute if these do not help within SEEK_TIME.
        """
        version = self._directory.version
        try:
            return self._next_run(talk, talk.lost)
        except NoRoute:
            if not await self._seek(talk.model.root):
                raise
        with trio.move_on_after(SEEK_TIME):
            while True:
                with suppress(NoRoute):
                    return self._next_run(talk, talk.lost)
                version = await self._directory.changed(version)
        return self._next_run(talk, talk.lost)

    def _next_run(self, talk: _Talk, without: Collection[str]) -> GenerationRun:
        """Create a session over the best chain for the remaining tokens, without the peers in
        `without`.

        Raises NoRoute if no chain covers the model. If a stage has refused before, raises its
        refusal (SessionError) instead.
        """
        session = self._host.entropy(SESSION_BYTES)
        new = talk.new - talk.answer.made
        without = {*talk.refused, *without}
        members = {
            peer: record
            for peer, record in self._directory.members().items()
            if peer not in without and not self._courier.is_quiet(peer)
        }
        linked = {peer: members[peer] for peer in members if self._courier.reaches(peer)}
        try:
            try:
                route = self._route(talk, linked, new, session)
            except NoRoute:  # a new link takes time, so chains of linked members are tried first
                route = self._route(talk, members, new, session)
        except NoRoute:
            for error in talk.refused.values():  # a stage's refusal is more informative
                raise _told(talk, error) from None
            raise
        return GenerationRun(session, route, talk.ids, new, self._host.now(), talk.terms)

    def _route(self, talk: _Talk, members: Members, new: int, session: bytes) -> tuple[Hop, ...]:
        return find_route(
            members,
            talk.model.root,
            talk.model.layers,
            len(talk.ids) + new,
            Preference(self._courier.peer, session, self.avoided()),
            answer=new,
        )

    async def _open(self, talk: _Talk, run: GenerationRun, fresh: Collection[PeerId]) -> None:
        """Open a run, beginning with the stages in `fresh`, which are not part of the previous run.

        When these are open, the previous run is closed, and then the stages that both runs share
        are opened. If the previous chain has sent a message in the meantime, it stays and the new
        run is closed. Raises Refused if a stage refuses.
        """
        before, began = talk.run, self._host.now()
        self._runs[run.session] = run, talk.model
        try:
            await self._chains.open(run, talk.model, talk.request.sampling, fresh)
            if before is not None and before.has_gone_on(began):
                return  # the previous chain continues
            await self._leave(talk)
            rest = set(run.peers) - set(fresh)
            await self._chains.open(run, talk.model, talk.request.sampling, rest)
            run.heard_at = self._host.now()
            talk.run = run
        except StageRefused as refusal:
            talk.refused[refusal.peer] = refusal.error
            raise
        finally:
            if talk.run is not run:
                await self._close(run)

    async def _move(
        self, talk: _Talk, before: GenerationRun, error: StageLost | None = None
    ) -> bool:
        """Replace a chain that has a quiet or lost stage. Return whether another chain has taken
        over.

        Returns False if there is no other chain, or if the previous one has recovered.
        """
        most = len(talk.refused) + OPEN_ATTEMPTS
        for without in self._suspects(before, error):
            while len(talk.refused) < most:
                try:
                    run = self._next_run(talk, {*talk.lost, *without})
                except (NoRoute, SessionError):
                    break
                try:
                    await self._open(talk, run, set(run.peers) - set(before.peers))
                except StageRefused:
                    if talk.run is not None:
                        continue
                    await self._start(talk)
                    return True
                if talk.run is run:
                    await talk.answer.begin(run.route)
                return talk.run is run
        return False

    def _suspects(self, run: GenerationRun, error: StageLost | None) -> Iterator[Collection[str]]:
        """Yield sets of peers to leave out of the next chain, the most likely cause first.

        If a stage has lost its neighbour, either of the two may be the unreachable one. Therefore,
        each is also left out alone.
        """
        lost: set[str] = {error.peer} if error is not None else set()
        parted = {*run.parted, *lost, *({error.by} if error is not None else ())}
        lost |= run.missed
        yield lost
        yield from ({peer} for peer in run.peers if peer in parted and {peer} != lost)

    async def _give_way(self, talk: _Talk) -> None:
        """If the request's turn is over, close its chain and wait for the next turn. Then open a
        chain if none is open.

        Only requests for jobs have turns: interactive requests have priority over them.
        """
        turn = talk.request.turn
        if turn is not None and turn.is_over():
            await self._leave(talk)
            await turn.come()
            talk.refused.clear()
        if talk.run is None:
            await self._start(talk)

    async def _leave(self, talk: _Talk) -> None:
        """Close the request's chain, if one is open."""
        run, talk.run = talk.run, None
        if run is not None:
            await self._close(run)

    async def _close(self, run: GenerationRun) -> None:
        _, model = self._runs[run.session]
        try:
            await self._chains.close(run, model)
        finally:
            del self._runs[run.session]

    # The conversation with the chain.

    async def _converse(self, talk: _Talk) -> bool:
        """Send the prompt over the open chain and receive the tokens. Return whether the answer is
        complete.

        The prompt is sent in spans, a few ahead of the head's progress. Returns False if another
        chain has taken over, or if the job must yield.
        """
        run = talk.run
        assert run is not None
        spans = _spans(run, talk.model.hidden)
        try:
            for _ in range(min(len(run.route) + 1, SPANS_UNDER_WAY)):
                self._feed(run, spans)
            await self._draft(talk, run)
            while True:
                items = await self._hear(run)
                results = [item for item in items if isinstance(item, Arrived | Pooled)]
                if results and await talk.answer.add(results):
                    return True
                for item in items:
                    if isinstance(item, SessionError):
                        raise item
                    if isinstance(item, SpanProgress | Pooled):
                        self._feed(run, spans)
                if talk.must_yield:
                    return False
                if not items and await self._move(talk, run):
                    return False
        except StageLost as error:
            await self._replace(talk, run, error)
            return False

    async def _replace(self, talk: _Talk, run: GenerationRun, error: StageLost) -> None:
        """Continue over another chain after a stage was lost.

        If there is no other, and the stage will return, wait for it. The next session begins with
        the prompt and the tokens so far. Returns without a chain if the job must yield. Raises
        `error` if no chain covers the model any more, and SessionError if the stage does not
        return in time or was lost too often during this request.
        """
        if error.cause:
            await trio.sleep(talk.crashes.note(error, talk.answer.made, self._host.now()))
        elif error.by is None:
            talk.lost.add(PeerId(error.peer))
        if await self._move(talk, run, error):
            return
        if not error.cause:
            raise error
        await self._leave(talk)
        try:
            await self._start(talk, {PeerId(error.peer)})
        except NoRoute:
            raise error from None

    async def _hear(self, run: GenerationRun) -> list[Item]:
        """Wait for items of the session and return them.

        Returns nothing if the chain is stalled and one of its stages is quiet. Raises SessionError
        `silent` after TOKEN_TIMEOUT.
        """
        while True:
            quiet = run.missed or any(map(self._courier.is_quiet, run.peers))
            items = await run.heard(QUIET_LOOK if quiet else TOKEN_TIMEOUT)
            if items:
                return items
            now = self._host.now()
            if now >= run.heard_at + TOKEN_TIMEOUT:
                raise SessionError("silent", f"no stage said anything for {TOKEN_TIMEOUT:g} s")
            quiet = run.missed or any(map(self._courier.is_quiet, run.peers))
            if quiet and run.is_stalled(now):
                return []

    def _feed(self, run: GenerationRun, spans: Iterator[SpanMessage]) -> None:
        """Send the next prompt span, if any, to the first stage. Raises StageLost if it has no
        link."""
        if (span := next(spans, None)) is None:
            return
        payload = pack_tokens(run.ids[span.start : span.start + span.count])
        try:
            self._courier.post(run.peers[0], "session.span", span.header(), payload)
        except LinkClosed as error:
            raise _lost(run, run.peers[0], error.message) from None

    async def _draft(self, talk: _Talk, run: GenerationRun) -> None:
        """Begin to draft what the chain will say, if all of its stages compute windows."""
        if not (run.can_draft and self._drafting.on) or run.terms.pooled or run.new < 2:
            return
        user, limit = talk.request.user, run.prompt + run.new
        run.speculation = self._drafting.begin(
            *(user, talk.model.identity, len(run.route), limit), talk.drafts
        )
        await run.speculation.read(run.ids[: run.prompt])
        self._send_windows(run)

    def _send_windows(self, run: GenerationRun) -> None:
        """Send the windows that are worth computing now to the first stage."""
        if run.speculation is None:
            return
        for window in run.speculation.windows():
            span = SpanMessage(
                *(run.session, run.epoch, 0, window.start, len(window.tokens), True, 0.0),
                draft=True,
                branch=window.branch,
            )
            with suppress(LinkClosed):  # what notices the lost stage replaces the chain
                self._courier.post(
                    run.peers[0], "session.span", span.header(), pack_tokens(window.tokens)
                )

    # Messages from stages.

    def _find(
        self, call: Call, session: SessionId, epoch: int, *, head: bool
    ) -> tuple[GenerationRun, Model]:
        """Return the run of a session and its model.

        Raises SessionError if the session is not open, or if the sender may not send this message.
        If `head`, only the last stage may send it.
        """
        if session not in self._runs:
            raise SessionError("unknown-session", "no such session is open here")
        run, model = self._runs[session]
        run.check(call.peer, epoch, head=head)
        return run, model

    def _on_token(self, call: Call) -> Reply | Refusal:
        try:
            token = SampledToken.parse(call.header)
            run, model = self._find(call, token.session, token.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        now = self._host.now()
        if run.take_token(token, model.vocabulary, now) and run.speculation is not None:
            run.speculation.take(token.token, token.seconds, now)
            self._send_windows(run)
        return Reply()

    def _on_progress(self, call: Call) -> Reply | Refusal:
        try:
            progress = SpanProgress.parse(call.header)
            run, _ = self._find(call, progress.session, progress.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_progress(progress, self._host.now())
        return Reply()

    def _on_pooled(self, call: Call) -> Reply | Refusal:
        try:
            progress = PooledSpan.parse(call.header)
            run, model = self._find(call, progress.session, progress.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        try:
            states = unpack_states(call.payload, model.hidden)
        except SessionError:
            run.fail(SessionError("bad-stage", f"{run.describe(-1)} sent an invalid sum"))
        else:
            run.take_pooled(progress, states, self._host.now())
        return Reply()

    def _on_quiet(self, call: Call) -> Reply | Refusal:
        try:
            said = Quiet.parse(call.header)
            run, _ = self._find(call, said.session, said.epoch, head=False)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_quiet(call.peer, said.peer, quiet=said.quiet)
        return Reply()

    def _on_failed(self, call: Call) -> Reply | Refusal:
        try:
            failed = Failed.parse(call.header)
            run, _ = self._find(call, failed.session, failed.epoch, head=False)
        except SessionError as error:
            return Refusal(error.code, error.message)
        stage = run.describe(run.peers.index(call.peer))
        if failed.lost in run.peers:
            run.fail(_lost(run, failed.lost, f"{failed.message}, says {stage}", by=call.peer))
        elif failed.code in LOST_STATE:
            run.fail(_lost(run, call.peer, failed.message, cause=failed.code))
        else:
            run.fail(SessionError(failed.code, f"{stage}: {failed.message}"))
        return Reply()

    def _waits_for(self, peer: PeerId) -> bool:
        """Return whether the peer is a stage of an open session."""
        return any(peer in run.peers for run, _ in self._runs.values())

    def _link_quiet(self, link: Link) -> None:
        for run, _ in self._runs.values():
            if link.peer in run.peers:
                run.look()

    def _link_lost(self, link: Link, code: str) -> None:
        for run, _ in self._runs.values():
            if link.peer in run.peers:
                run.fail(_lost(run, link.peer, f"the link ended: {code}"))


def _lost(
    run: GenerationRun,
    peer: PeerId,
    why: str,
    *,
    by: PeerId | None = None,
    cause: str = "",
) -> StageLost:
    """Create the error for a lost stage. `by` is the stage that reported the loss, or None.

    `cause` is the stage's code if it will return, otherwise "".
    """
    message = f"{run.describe(run.peers.index(peer))} is lost: {why}"
    return StageLost(peer, message, by=by, cause=cause)


def _told(talk: _Talk, refusal: SessionError) -> SessionError:
    """Return a stage's refusal as an error for the client, with a hint if the stage lacks
    memory."""
    if refusal.code != FULL:
        return refusal
    prompt, new = len(talk.ids), talk.new - talk.answer.made
    hint = (
        f"the prompt has {prompt} tokens and the answer up to {new}: shorten it, set a smaller "
        "`--max-tokens`, or try again when other answers have ended"
    )
    return SessionError(refusal.code, refusal.message, hint=hint)


def _room(model: Model, prompt: int, wanted: int | None) -> int:
    """Return how many tokens may be generated for a prompt of `prompt` tokens.

    Raises PromptTooLong if the prompt fills the context, and SessionError if `wanted` is below 1.
    """
    if prompt >= model.context:
        raise PromptTooLong(prompt, model.context)
    if wanted is not None and wanted < 1:
        raise SessionError("bad-request", f"cannot generate {wanted} tokens")
    return min(wanted or MAX_NEW_TOKENS, model.context - prompt)


def _spans(run: GenerationRun, hidden: int) -> Iterator[SpanMessage]:
    """Yield the messages that carry the prompt, in spans of bounded size.

    `hidden` is the number of values in a hidden state. Only the last span requests a token, and in
    a pooled session none.
    """
    step = max(1, min(PREFILL_TOKENS, PREFILL_BYTES // (4 * hidden)))
    first = run.start
    while first < run.prompt:
        count = min(step, run.prompt - first)
        if run.prompt - first - count == 1 < count:  # a single position is no part of a prompt
            count -= 1
        last = first + count == run.prompt and not run.terms.pooled
        yield SpanMessage(run.session, run.epoch, 0, first, count, last, 0.0)
        first += count
