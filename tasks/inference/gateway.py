"""Gateway of sessions: sends a prompt through a chain of stages and returns the text of the answer.

Tokens do not pass through the gateway on their way from the head (the last stage) to the first
stage. The gateway sends the prompt to the first stage, and the stages then generate without it
until the head or the gateway stops them. Spec: docs/spec/session.md.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from ...state.directory import Directory
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ..defaults import MAX_NEW_TOKENS
from ..drafting.sessions import Drafting
from ..engine.interface import Rules
from ..errors import PromptTooLong, SessionError
from ..text.process import ChatTurn, TextDelta
from .chain import Chains
from .conversation.advancing import Advancing
from .conversation.answer import Answer
from .conversation.conversing import ChainChanges, Conversation
from .conversation.guessing import Guessing
from .conversation.mending import Mending
from .conversation.opening import Opening
from .conversation.received import Rest
from .conversation.recomputing import TOP, KnownAnswer, Recomputed, Ties
from .conversation.refilling import Refilling
from .conversation.replacing import Replacing
from .conversation.routes import Routes, Seek
from .conversation.runs import OpenRuns
from .conversation.standing import Standing
from .conversation.talk import Talk
from .conversation.windows import Windows
from .courier import Courier
from .embedding import Embedder, PooledAnswer, Vector, encoded
from .generation import Emit, GatewayEvent, GenerateRequest, Model, Routed, Summary

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

    async def alike(self, model: Model, root: str) -> Model | None:
        """Return the model with that root if it has the tokenizer of `model`, whose text process it
        then shares. Raises ModelError if its manifest cannot be read."""
        ...


FindAdapter = Callable[[str, Model], Awaitable[str]]
"""Returns the root of the adapter with a name (or root), after checking that it fits a model.

Raises SessionError `no-adapter` or `bad-adapter`.
"""


async def _no_adapters(_text: str, _model: Model) -> str:
    await trio.lowlevel.checkpoint()
    raise SessionError("no-adapter", "this gateway has no adapters")


async def _no_nodes(_root: str) -> bool:
    await trio.lowlevel.checkpoint()
    return False


@dataclass(frozen=True, slots=True)
class Finders:
    """How a gateway finds what its models and members lack: nodes that serve a model, and
    adapters."""

    seek: Seek = _no_nodes
    adapter: FindAdapter = _no_adapters


class Gateway:
    """Gateway that answers this node's requests over chains of stages."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        directory: Directory,
        models: ModelSource,
        *,
        finders: Finders | None = None,
        expect: Callable[[], None] = lambda: None,
    ) -> None:
        """`expect` is called when an interactive request has come, before it is encoded."""
        self._host = host
        finders = finders or Finders()
        self._find_adapter, self._models = finders.adapter, models
        self.drafting = Drafting()
        """What drafts for the sessions of this gateway."""
        self._chains = Chains(host, courier)
        routes = Routes(host, courier, directory, self._chains, finders.seek)
        self.choice = routes.choice
        """What chooses chains, with its beliefs about stages and the errors of its predictions."""
        self.windows = Windows(courier, self.drafting, self.choice)
        self.runs = OpenRuns(host, courier, self.windows, self.choice)
        self._opening = Opening(host, courier, self._chains, routes, self.runs)
        mending = Mending(*(host, courier, directory, self._chains, self.runs), routes.choice)
        standing = Standing(host, courier, directory, self._chains, routes.choice)
        known = courier, directory, self.choice
        self.guessing = Guessing(*known, self.windows, models.alike, self._converse)
        """Has smaller models of this node guess what a chain says."""
        changing = ChainChanges(
            Replacing(host, routes, self._opening, mending, Refilling(host, courier, directory)),
            standing,
            Advancing(courier, directory, routes.choice, standing),
            self.guessing,
        )
        self._conversation = Conversation(host, courier, self._opening, self.windows, changing)
        self.embedder = Embedder(self._use, self._pool)
        """Answers requests for embeddings."""
        self._expect = expect
        self._waited_for = 0
        self.answers = self.answer_tokens = 0  # completed since the start

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self.runs)

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
        if request.turn is None:
            self._expect()
        try:
            async with self._use(request.model, request.adapter) as model:
                summary = await self._generate(model, request, emit, began)
            self.answers += 1
            self.answer_tokens += summary.tokens
            return summary
        finally:
            self._waited_for -= request.turn is None

    @asynccontextmanager
    async def _use(self, name: str, adapter: str) -> AsyncIterator[Model]:
        """Provide a model with an adapter, each by name or root. The adapter "" is none."""
        async with self._models.use(name) as model:
            root = await self._find_adapter(adapter, model) if adapter else ""
            yield replace(model, adapter=root)

    async def _generate(
        self, model: Model, request: GenerateRequest, emit: Emit, began: float
    ) -> Summary:
        ids = await self._encode(model, request)
        new = _room(model, len(ids), request.max_tokens)
        _check_bias(request.rules, model)
        rest = Rest(request.received, emit)
        if request.received:
            emit = rest
            await self._expect_text(model, request, ids)
        answer = Answer(
            ids, model, request, emit, began, at_context=len(ids) + new == model.context
        )
        talk = Talk(model, request, ids, new, answer)
        try:
            await self._opening.start(talk)
            await answer.prepare()
            await self._conversation.hold(talk)
            await self.windows.end(talk)
            rest.check()
            return replace(answer.summary(), drafts=talk.drafts)
        finally:
            await self._opening.leave(talk)

    async def _expect_text(self, model: Model, request: GenerateRequest, ids: list[int]) -> None:
        """Have the text that a client received from another gateway drafted, so that it is
        generated again as fast as it is verified. Raises SessionError `bad-request` if it cannot be
        left out of the answer."""
        if request.logprobs:
            what = "expected no log-probabilities together with a text that was received"
            raise SessionError("bad-request", what)
        known = await model.text.encode(request.received, add_special=False)
        await self.drafting.end(request.user, model.identity, [*ids, *known])

    async def recompute(
        self, request: GenerateRequest, tokens: Sequence[int], ties: Ties
    ) -> Recomputed:
        """Compute whether a chain would answer a request with these tokens.

        Raises what `generate` raises.
        """
        request = replace(request, top=TOP)
        async with self._use(request.model, request.adapter) as model:
            ids = await self._encode(model, request)
            room = _room(model, len(ids), request.max_tokens)
            at_context = len(ids) + room == model.context
            began = self._host.now()
            answer = Answer(ids, model, request, _unheard, began, at_context=at_context)
            await answer.prepare()
            if not tokens or len(tokens) > room or max(tokens) >= model.vocabulary:
                tokens = ()
            known = KnownAnswer(answer, ids, tokens, request.sampling, ties)
            talk = Talk(model, request, ids, len(tokens), known)
            try:
                while not known.over:
                    await self._opening.start(talk)
                    await self._conversation.hold(talk)
                    await self._opening.leave(talk)
            finally:
                await self._opening.leave(talk)
            return known.result(room)

    async def embed_one(self, request: GenerateRequest) -> tuple[Vector, int]:
        """Return the embedding of the prompt of a request, and its number of tokens.

        Unlike requests to `embedder`, it may be for a job. Raises what `generate` raises.
        """
        async with self._use(request.model, request.adapter) as model:
            ids = await encoded(model, request.prompt or "")
            return await self._pooled(model, request, ids), len(ids)

    async def _pool(self, model: Model, ids: list[int], user: str) -> Vector:
        """Return the embedding of a prompt. Raises what `generate` raises."""
        return await self._pooled(model, GenerateRequest(model.root, user=user), ids)

    async def _pooled(self, model: Model, request: GenerateRequest, ids: list[int]) -> Vector:
        answer = PooledAnswer(len(ids), model.hidden)
        talk = Talk(model, request, ids, 0, answer)
        self._waited_for += request.turn is None
        try:
            await self._converse(talk)
            return answer.vector()
        finally:
            self._waited_for -= request.turn is None

    async def _converse(self, talk: Talk) -> None:
        """Converse over chains until an answer is complete. Raises what `generate` raises."""
        try:
            await self._opening.start(talk)
            await self._conversation.hold(talk)
        finally:
            await self._opening.leave(talk)

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


async def _unheard(_event: GatewayEvent) -> None:
    pass


def _check_bias(rules: Rules, model: Model) -> None:
    """Raise SessionError `bad-request` if a bias is for a token that the model does not have."""
    for token, _ in rules.bias[-1:]:
        if token >= model.vocabulary:
            most = model.vocabulary - 1
            what = f"the bias is for token {token}, but the model's tokens end with {most}"
            raise SessionError("bad-request", what)


def _room(model: Model, prompt: int, wanted: int | None) -> int:
    """Return how many tokens may be generated for a prompt of `prompt` tokens.

    Raises PromptTooLong if the prompt fills the context, and SessionError if `wanted` is below 1.
    """
    if prompt >= model.context:
        raise PromptTooLong(prompt, model.context)
    if wanted is not None and wanted < 1:
        raise SessionError("bad-request", f"cannot generate {wanted} tokens")
    return min(wanted or MAX_NEW_TOKENS, model.context - prompt)
