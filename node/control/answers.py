"""Operations on the control socket that generate text: `run`, `resume` and `forget`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...tasks.engine.interface import Rules, Sampling
from ...tasks.inference.generation import (
    Awaited,
    Forwarded,
    GatewayEvent,
    GenerateRequest,
    Routed,
    Summary,
)
from ...tasks.routing.paths import Hop
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ..daemon.base import Base
from ..daemon.compute import ComputeParts
from ..errors import ControlError
from ..resumable import Note, ResumableAnswers
from .messages import generation
from .server import Emit, Operation, operation
from .work.ownjobs import sampling_of

CHAIN_BYTES: Final = 8192
"""Counted for an event that names the chain, of up to 64 stages."""
PIECE_BYTES: Final = 128
"""Counted for a piece of text beside its characters."""
OWNER: Final = "local"
"""Owner of the answers of this socket, which only this user can open."""

Answers = ResumableAnswers[generation.TextEvent, generation.GeneratedText]


class AnswerOperations:
    """Operations that generate text on one node."""

    def __init__(self, base: Base, compute: ComputeParts, answers: Answers) -> None:
        self._base = base
        self._host = base.host
        self._compute = compute
        self._answers = answers

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(generation.Run, self.run),
                operation(generation.Resume, self.resume),
                operation(generation.Forget, self.forget),
            )
        )

    async def run(self, ask: generation.Run, emit: Emit) -> generation.GeneratedText:
        self._base.refuse_when_stopping()
        sampling = sampling_of(ask, self._host)

        async def work(note: Note[generation.TextEvent]) -> generation.GeneratedText:
            return await self._generate(ask, sampling, note)

        answer = self._answers.begin(OWNER, work) if ask.resumable else None
        if answer is None:
            return await self._generate(ask, sampling, _without_size(emit))
        await emit(generation.AnswerResumable(answer.token, sampling.seed))
        return await self._answers.follow(answer, 0, emit)

    async def resume(self, ask: generation.Resume, emit: Emit) -> generation.GeneratedText:
        answer = self._answers.find(ask.token, OWNER)
        return await self._answers.follow(answer, ask.since, emit)

    async def forget(self, ask: generation.Forget, _emit: Emit) -> generation.Forgotten:
        try:
            self._answers.forget(self._answers.find(ask.token, OWNER))
        except ControlError:
            return generation.Forgotten(False)
        return generation.Forgotten(True)

    async def _generate(
        self, ask: generation.Run, sampling: Sampling, note: Note[generation.TextEvent]
    ) -> generation.GeneratedText:
        """Generate an answer. `note` receives its events with their sizes."""
        asked = GenerateRequest(
            model=ask.model,
            prompt=ask.prompt,
            raw=ask.raw,
            max_tokens=ask.max_tokens,
            sampling=sampling,
            rules=_rules_of(ask),
            stop=ask.stop,
            adapter=ask.adapter or "",
            exact=ask.exact,
            received=ask.received,
        )
        stages: tuple[generation.ChainStage, ...] = ()
        sharer: str | None = None

        async def pass_on(event: GatewayEvent) -> None:
            nonlocal stages, sharer
            if isinstance(event, Routed):
                stages = tuple(map(_hop_view, event.stages))
                await note(generation.ChainChosen(stages, sampling.seed), CHAIN_BYTES)
            elif isinstance(event, Forwarded):
                sharer = event.peer
                await note(generation.SharerChosen(event.peer), CHAIN_BYTES)
            elif isinstance(event, Awaited):
                layers = tuple(f"{start}:{stop}" for start, stop in event.layers)
                await note(generation.LayersAwaited(layers, event.most_s), CHAIN_BYTES)
            elif event.text:
                await note(generation.TextPiece(event.text), PIECE_BYTES + 4 * len(event.text))

        summary = await self._compute.sharing.answering.generate(asked, pass_on)
        return replace(_answer(summary, sampling.seed, stages), shared_by=sharer)


def _rules_of(ask: generation.Run) -> Rules:
    """Return the rules of a request that change logits. Of several biases of a token, the last one
    counts."""
    return Rules(
        tuple(sorted({each.token: float(each.bias) for each in ask.logit_bias}.items())),
        float(ask.repetition_penalty),
        float(ask.frequency_penalty),
        float(ask.presence_penalty),
    )


def _without_size(emit: Emit) -> Note[generation.TextEvent]:
    async def note(event: generation.TextEvent, _size: int) -> None:
        await emit(event)

    return note


def _hop_view(hop: Hop) -> generation.ChainStage:
    return generation.ChainStage(hop.peer, f"{hop.parts.start}:{hop.parts.stop}")


def _answer(
    summary: Summary, seed: int, nodes: tuple[generation.ChainStage, ...]
) -> generation.GeneratedText:
    return generation.GeneratedText(
        text=summary.text,
        reason=summary.reason,
        prompt_tokens=summary.prompt_tokens,
        tokens=summary.tokens,
        ttft_ms=summary.ttft_s * 1000,
        tokens_per_s=summary.tokens_per_s,
        hop_ms=summary.hop_ms,
        seed=seed,
        nodes=nodes,
    )


def new_answers(host: Host, guard: Guard) -> Answers:
    """Create the store of the answers whose clients may come back."""
    return ResumableAnswers(host, guard, weigh=lambda answer: 4 * len(answer.text))
