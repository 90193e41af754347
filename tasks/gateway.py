"""The asking side of a session: text in, a chain of stages, tokens back, text out.

docs/spec/session.md. The gateway is not on the path of a token: it feeds the prompt to the
first stage, and the stages go round without it until the head or the gateway stops them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

import trio

from ..state.directory import Directory
from ..transport.calls import Call, Refusal, Reply
from ..transport.errors import CallRefused, LinkClosed
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.link import Link
from .courier import Courier
from .defaults import (
    CLOSE_TIMEOUT,
    MAX_NEW_TOKENS,
    MAX_STOP_IDS,
    OPEN_ATTEMPTS,
    OPEN_TIMEOUT,
    PREFILL_BYTES,
    PREFILL_TOKENS,
    ROUTE_AROUND,
    SPANS_UNDER_WAY,
    TOKEN_TIMEOUT,
)
from .engine.interface import Sampling, SessionId
from .errors import NoRoute, PromptTooLong, SessionError
from .generation import (
    Answer,
    Arrived,
    Emit,
    GatewayEvent,
    GenerateRequest,
    Model,
    Routed,
    Run,
    Summary,
)
from .routing import Hop, find_route
from .session import (
    SESSION_BYTES,
    Close,
    Failed,
    Open,
    Progress,
    SpanMessage,
    Token,
    pack_tokens,
    parse_cached,
    parse_dtype,
    stage_code,
)
from .text.process import Message, TextDelta

__all__ = [
    "Gateway",
    "GatewayEvent",
    "GenerateRequest",
    "Message",
    "Model",
    "ModelSource",
    "Routed",
    "Summary",
    "TextDelta",
]


class ModelSource(Protocol):
    """Where models come from: `models.py`."""

    def use(self, name: str) -> AbstractAsyncContextManager[Model]:
        """A model by name or root, while the block lasts; raises ModelError, TextError."""
        ...


class _Refused(Exception):
    """A stage did not open; another chain may."""

    def __init__(self, peer: PeerId, error: SessionError) -> None:
        super().__init__(error.message)
        self.peer = peer
        self.error = error


class Gateway:
    """Answers this node's clients through whatever chain of stages there is."""

    def __init__(
        self, host: Host, courier: Courier, directory: Directory, models: ModelSource
    ) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory
        self._models = models
        self._runs: dict[SessionId, tuple[Run, Model]] = {}
        self._unopened: dict[PeerId, float] = {}  # stages that did not open a session, and when
        courier.handle("session.token", self._on_token)
        courier.handle("session.progress", self._on_progress)
        courier.handle("session.failed", self._on_failed)
        courier.on_link_lost(self._link_lost)

    @property
    def sessions(self) -> int:
        """How many are under way."""
        return len(self._runs)

    async def generate(self, request: GenerateRequest, emit: Emit) -> Summary:
        """Answer one request; `emit` gets the chain and then the text as it comes.

        Cancelling it, or an error of `emit`, frees the session on every stage. Raises
        PromptTooLong, SessionError (codes: docs/spec/session.md), NoRoute, TextError,
        ModelError.
        """
        began = self._host.now()
        async with self._models.use(request.model) as model:
            return await self._generate(model, request, emit, began)

    async def _generate(
        self, model: Model, request: GenerateRequest, emit: Emit, began: float
    ) -> Summary:
        ids = await self._encode(model, request)
        new = _room(model, len(ids), request.max_tokens)
        refused: dict[PeerId, SessionError] = {}
        while True:
            session = self._host.entropy(SESSION_BYTES)
            route = self._route(session, model, len(ids) + new, refused)
            run = Run(session, route, ids, new)
            try:
                return await self._attempt(run, model, request, emit, began)
            except _Refused as refusal:
                refused[refusal.peer] = refusal.error
                if len(refused) == OPEN_ATTEMPTS:
                    raise refusal.error from None

    async def _encode(self, model: Model, request: GenerateRequest) -> list[int]:
        if request.messages is None and request.prompt is None:
            raise SessionError("bad-request", "there is neither a prompt nor messages")
        if request.raw:
            ids = await model.text.encode(request.prompt or "")
        elif request.messages is not None:
            ids = await model.text.encode_chat(request.messages)
        else:
            ids = await model.text.encode_chat([Message("user", request.prompt or "")])
        if not ids:
            raise SessionError("bad-request", "the prompt is empty")
        return ids

    def _route(
        self,
        session: SessionId,
        model: Model,
        tokens: int,
        refused: Mapping[PeerId, SessionError],
    ) -> Sequence[Hop]:
        everyone = self._directory.members().items()
        members = {peer: record for peer, record in everyone if peer not in refused}
        try:
            return find_route(
                members,
                model.root,
                model.layers,
                tokens,
                own=self._courier.peer,
                session=session,
                avoid=self._avoided(),
            )
        except NoRoute:
            for error in refused.values():  # why the last chain was refused says more
                raise error from None
            raise

    def _avoided(self) -> Collection[PeerId]:
        """Who did not open a session lately: a stage that refuses all shall not cost each
        request one of its attempts."""
        since = self._host.now() - ROUTE_AROUND
        self._unopened = {peer: at for peer, at in self._unopened.items() if at > since}
        return self._unopened.keys()

    async def _attempt(
        self, run: Run, model: Model, request: GenerateRequest, emit: Emit, began: float
    ) -> Summary:
        with self._registered(run, model):
            try:
                cached = await self._open(run, model, request.sampling)
                await emit(Routed(run.route))
                start = min(cached, run.prompt - 1)  # the last one is computed for its answer
                answer = Answer(run, model, request, emit, began)
                await answer.prepare()
                await self._converse(run, model, start, answer)
                return answer.summary()
            finally:
                await self._close(run)

    @contextmanager
    def _registered(self, run: Run, model: Model) -> Iterator[None]:
        self._runs[run.session] = run, model
        try:
            yield
        finally:
            del self._runs[run.session]

    async def _open(self, run: Run, model: Model, sampling: Sampling) -> int:
        """Open all stages at once; the session starts at the shortest cached prefix."""
        cached: list[int] = []
        failures: list[_Refused] = []

        async def open_one(index: int) -> None:
            try:
                cached.append(await self._open_stage(run, index, model, sampling))
            except _Refused as refusal:
                failures.append(refusal)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index in range(len(run.route)):
                nursery.start_soon(open_one, index)
        if failures:
            raise failures[0]
        return min(cached)

    async def _open_stage(self, run: Run, index: int, model: Model, sampling: Sampling) -> int:
        hop = run.route[index]
        message = Open(
            session=run.session,
            epoch=run.epoch,
            root=model.root,
            parts=hop.parts,
            dtype=parse_dtype(hop.dtype),
            stages=run.peers,
            index=index,
            tokens=run.prompt + run.new,
            steps=run.new,
            stop_ids=model.text.info.stop_ids[:MAX_STOP_IDS],
            sampling=sampling,
        )
        try:
            reply = await self._courier.call(
                hop.peer, "session.open", message.header(), timeout=OPEN_TIMEOUT
            )
            return parse_cached(reply.header, message.tokens)
        except (CallRefused, LinkClosed, SessionError) as error:
            self._unopened[hop.peer] = self._host.now()
            code = "unreachable" if isinstance(error, LinkClosed) else stage_code(error.code)
            reason = SessionError(code, f"{run.describe(index)}: {error.message}")
            raise _Refused(hop.peer, reason) from None

    async def _converse(self, run: Run, model: Model, start: int, answer: Answer) -> None:
        """Feed the prompt, a few spans ahead of the head's progress, and take the tokens."""
        spans = _spans(run, start, model.hidden)
        for _ in range(min(len(run.route) + 1, SPANS_UNDER_WAY)):
            self._feed(run, spans)
        while True:
            with trio.move_on_after(TOKEN_TIMEOUT) as scope:
                items = await run.heard()
            if scope.cancelled_caught:
                raise SessionError("silent", f"no stage said anything for {TOKEN_TIMEOUT:g} s")
            tokens = [item for item in items if isinstance(item, Arrived)]
            if tokens and await answer.add(tokens):
                return
            for item in items:
                if isinstance(item, SessionError):
                    raise item
                if isinstance(item, Progress):
                    self._feed(run, spans)

    def _feed(self, run: Run, spans: Iterator[SpanMessage]) -> None:
        if (span := next(spans, None)) is None:
            return
        payload = pack_tokens(run.ids[span.start : span.start + span.count])
        try:
            self._courier.post(run.peers[0], "session.span", span.header(), payload)
        except LinkClosed as error:
            raise _lost(run, run.peers[0], error.message) from None

    async def _close(self, run: Run) -> None:
        """Free the session everywhere, also when this request is being cancelled."""
        header = Close(run.session).header()

        async def close_one(peer: PeerId) -> None:
            try:
                await self._courier.call(peer, "session.close", header, timeout=CLOSE_TIMEOUT)
            except (CallRefused, LinkClosed):
                return  # a stage that is gone has freed it by going

        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            async with trio.open_nursery() as nursery:
                for peer in run.peers:
                    nursery.start_soon(close_one, peer)

    # What stages say.

    def _find(self, call: Call, session: SessionId, epoch: int, *, head: bool) -> tuple[Run, Model]:
        if session not in self._runs:
            raise SessionError("unknown-session", "no such session is open here")
        run, model = self._runs[session]
        run.check(call.peer, epoch, head=head)
        return run, model

    def _on_token(self, call: Call) -> Reply | Refusal:
        try:
            token = Token.parse(call.header)
            run, model = self._find(call, token.session, token.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_token(token, model.vocabulary, self._host.now())
        return Reply()

    def _on_progress(self, call: Call) -> Reply | Refusal:
        try:
            progress = Progress.parse(call.header)
            run, _ = self._find(call, progress.session, progress.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_progress(progress)
        return Reply()

    def _on_failed(self, call: Call) -> Reply | Refusal:
        try:
            failed = Failed.parse(call.header)
            run, _ = self._find(call, failed.session, failed.epoch, head=False)
        except SessionError as error:
            return Refusal(error.code, error.message)
        stage = run.describe(run.peers.index(call.peer))
        if failed.lost in run.peers:
            run.fail(_lost(run, failed.lost, f"{failed.message}, says {stage}"))
        else:
            run.fail(SessionError(failed.code, f"{stage}: {failed.message}"))
        return Reply()

    def _link_lost(self, link: Link, code: str) -> None:
        for run, _ in self._runs.values():
            if link.peer in run.peers:
                run.fail(_lost(run, link.peer, f"the link ended: {code}"))


def _lost(run: Run, peer: PeerId, why: str) -> SessionError:
    return SessionError(
        "stage-lost",
        f"{run.describe(run.peers.index(peer))} is gone: {why}",
        hint="run it again: another replica may hold those layers",
    )


def _room(model: Model, prompt: int, wanted: int | None) -> int:
    """How many tokens may be generated; raises PromptTooLong where the context leaves none."""
    if prompt >= model.context:
        raise PromptTooLong(prompt, model.context)
    if wanted is not None and wanted < 1:
        raise SessionError("bad-request", f"{wanted} tokens cannot be generated")
    return min(wanted or MAX_NEW_TOKENS, model.context - prompt)


def _spans(run: Run, start: int, hidden: int) -> Iterator[SpanMessage]:
    """The prompt in spans of bounded bytes; only after the last one a token is wanted."""
    step = max(1, min(PREFILL_TOKENS, PREFILL_BYTES // (4 * hidden)))
    for first in range(start, run.prompt, step):
        count = min(step, run.prompt - first)
        last = first + count == run.prompt
        yield SpanMessage(run.session, None, run.epoch, first, count, last)
