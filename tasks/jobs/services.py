"""Services of a node that the rows of jobs may use."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ..inference.conversation.recomputing import Recomputed, Ties
from ..inference.gateway import Gateway
from ..inference.generation import Apart, GatewayEvent, GenerateRequest, Summary
from ..tuning.scoring import Scorer


@dataclass(frozen=True, slots=True)
class RowServices:
    """Implementation of `Services` (kinds/kind.py) by the gateway of this node, and by chains that
    compute losses."""

    gateway: Gateway
    scorer: Scorer

    async def generate(
        self, request: GenerateRequest, emit: Callable[[GatewayEvent], Awaitable[None]]
    ) -> Summary:
        return await self.gateway.generate(request, emit)

    async def embed_one(self, request: GenerateRequest) -> tuple[Sequence[float], int]:
        return await self.gateway.embed_one(request)

    async def recompute(
        self, request: GenerateRequest, tokens: Sequence[int], ties: Ties
    ) -> Recomputed:
        return await self.gateway.recompute(request, tokens, ties)

    async def loss(
        self, root: str, adapter: str, given: str, text: str, apart: Apart | None, job: str
    ) -> tuple[float, int]:
        return await self.scorer.loss(root, given, text, adapter=adapter, apart=apart, job=job)
