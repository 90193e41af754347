"""Embeddings: one vector for each text, from the final states that the head's stage has summed.

The vector is the mean over all positions of the states behind the final norm, scaled to length 1.
Most decoder models declare no pooling. Their mean depends on the whole text, while the state of the
last token mostly predicts the next one. No cached prefix is used, because the sum covers every
position.
"""

import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from ..defaults import EMBEDDINGS_AT_ONCE
from ..errors import NoRoute, PromptTooLong, SessionError
from ..routing.paths import Hop
from .conversation.items import Arrived, Pooled
from .generation import Awaited, Model

Vector: TypeAlias = "array[float]"
"""An embedding of length 1: one float32 for each hidden value of the model."""
_BUSY: Final = frozenset({"no-memory", "too-many-sessions", "no-route"})
"""Codes of a refusal that may have been caused by the other inputs of the same request."""


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A request for embeddings. An input is a text, or the ids of its tokens.

    `dimensions` is the expected size of a vector, or None. `user` is a name for the user of this
    node, or "", and `adapter` the name or root of an adapter, or "", as in `GenerateRequest`.
    """

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    user: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors in the order of the inputs, and the number of tokens of all inputs together."""

    vectors: tuple[Vector, ...]
    tokens: int


class PooledAnswer:
    """The sum of the final states of a prompt. Another chain starts it again."""

    made = 0
    """Number of tokens generated so far. A pooled session generates none."""

    def __init__(self, prompt: int, hidden: int) -> None:
        self._prompt = prompt
        self._hidden = hidden
        self._total = [0.0] * hidden

    async def begin(self, chain: Sequence[Hop]) -> None:
        """Discard what an earlier chain has summed."""
        await trio.lowlevel.checkpoint()
        self._total = [0.0] * self._hidden

    async def wait(self, event: Awaited) -> None:
        """Do nothing: no client is told that the request waits for a node."""
        await trio.lowlevel.checkpoint()

    async def add(self, arrived: Sequence[Arrived | Pooled]) -> bool:
        """Add the sums of spans. Return whether they cover the prompt."""
        await trio.lowlevel.checkpoint()
        last = 0
        for item in arrived:
            if isinstance(item, Pooled):
                self._total = [a + b for a, b in zip(self._total, item.states, strict=True)]
                last = item.position
        return last == self._prompt

    def vector(self) -> Vector:
        """Return the embedding."""
        length = math.hypot(*self._total)
        return array("f", [value / length if length else 0.0 for value in self._total])


Pool = Callable[[Model, list[int], str], Awaitable[Vector]]
"""(model, token ids, user): returns the embedding of one prompt."""


class Embedder:
    """Answers requests for embeddings. `use` provides a model with an adapter, and `pool` computes
    each embedding, a few at a time."""

    def __init__(
        self, use: Callable[[str, str], AbstractAsyncContextManager[Model]], pool: Pool
    ) -> None:
        self._use = use
        self._pool = pool
        self._places = trio.CapacityLimiter(EMBEDDINGS_AT_ONCE)  # of all requests together

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Return the embeddings of all inputs. No input is computed before all have been checked.

        Raises PromptTooLong if one exceeds the model's context, and SessionError `bad-dimensions`
        if vectors have another size than requested, besides the errors of `Gateway.generate`.
        """
        async with self._use(request.model, request.adapter) as model:
            if request.dimensions not in (None, model.hidden):
                raise SessionError(
                    "bad-dimensions",
                    f"embeddings of this model have {model.hidden} dimensions, "
                    f"{request.dimensions} were asked for",
                )
            prompts = [await encoded(model, each) for each in request.inputs]
            vectors = await self._all(model, prompts, request.user)
        return Embeddings(tuple(vectors), sum(map(len, prompts)))

    async def _all(self, model: Model, prompts: Sequence[list[int]], user: str) -> list[Vector]:
        """Return the embeddings of all prompts.

        Those for which there was no memory beside the others are computed later, one at a time.
        """
        vectors: dict[int, Vector] = {}

        async def one(number: int) -> None:
            async with self._places:
                vectors[number] = await self._pool(model, prompts[number], user)

        async def first(number: int) -> None:
            try:
                await one(number)
            except (SessionError, NoRoute) as error:
                if error.code not in _BUSY or len(prompts) == 1:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

        left = iter(range(len(prompts)))

        async def some() -> None:
            for number in left:
                await first(number)

        failures: list[SessionError | NoRoute] = []
        async with trio.open_nursery() as nursery:
            # No more, so that a request with many inputs does not delay those behind it for long.
            for _ in range(min(len(prompts), EMBEDDINGS_AT_ONCE)):
                nursery.start_soon(some)
        if failures:
            raise failures[0]
        for number in range(len(prompts)):
            if number not in vectors:
                await one(number)
        return [vectors[number] for number in range(len(prompts))]


async def encoded(model: Model, given: str | tuple[int, ...]) -> list[int]:
    """Return the token ids of an input.

    Raises PromptTooLong if it exceeds the context, and SessionError `bad-request` if it is empty or
    has unknown ids.
    """
    ids = await model.text.encode(given) if isinstance(given, str) else list(given)
    if not ids:
        raise SessionError("bad-request", "the input is empty")
    if max(ids) >= model.vocabulary:
        raise SessionError(
            "bad-request", f"{max(ids)} is not one of the {model.vocabulary} token ids of the model"
        )
    if len(ids) > model.context:
        raise PromptTooLong(len(ids), model.context)
    return ids
