"""Sends the prompt over a chain and receives the tokens."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import trio

from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ...defaults import (
    EMIT_PACE,
    JOB_PACE,
    SPANS_UNDER_WAY,
    TOKEN_TIMEOUT,
)
from ...drafting.modelguesses import ModelGuesses
from ...errors import SessionError, StageLost
from ..courier import Courier
from ..generation import GenerationRun
from ..messages import Rebuild, SpanMessage, SpanProgress, pack_tokens, stage_code
from ..surviving.recovery import LOST_STATE
from ..surviving.stagechanges import span_size
from .advancing import Advancing
from .guessing import Guessing
from .heldkv import prompt_spans
from .items import Arrived, Complete, Faster, Item, LeftOut, Needed, Pooled
from .opening import Opening
from .replacing import Replacing
from .standing import Standing
from .talk import Talk, lost_stage
from .watch import Watch
from .windows import Windows

Beside = Callable[[Talk, GenerationRun], Awaitable[None]]
"""A task that runs beside a conversation, until cancelled."""


@dataclass(frozen=True, slots=True)
class ChainChanges:
    """What changes the chain of an open session after a loss, before one, or for more speed, and
    what guesses for it."""

    replacing: Replacing
    standing: Standing
    advancing: Advancing
    guessing: Guessing


class Conversation:
    """Holds requests' conversations with their chains until the answers are complete."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        opening: Opening,
        windows: Windows,
        changes: ChainChanges,
    ) -> None:
        self._host = host
        self._courier = courier
        self._opening = opening
        self._windows = windows
        self._replacing = changes.replacing
        self._standing = changes.standing
        self._advancing = changes.advancing
        self._guessing = changes.guessing

    async def hold(self, talk: Talk) -> None:
        """Converse over one chain after another until the answer is complete.

        Raises what `Gateway.generate` raises.
        """
        while talk.run is None or not await self._converse(talk):
            await self._opening.yield_turn(talk)

    async def _converse(self, talk: Talk) -> bool:
        """Send the prompt over the open chain and receive the tokens. Return whether the answer is
        complete.

        The prompt is sent in spans, a few ahead of the head's progress. Returns False if another
        chain has taken over, or if the job must yield.
        """
        run = talk.run
        assert run is not None
        try:
            return await self._exchange_beside(talk, run, self._beside(talk, run))
        except StageLost as error:
            await self._replacing.replace(talk, run, error)
            return False

    def _beside(self, talk: Talk, run: GenerationRun) -> list[Beside]:
        """Return what runs beside the conversation with a chain: copies of KV to standbys, the
        search for faster chains, and the guesses of a smaller model."""
        found = list[Beside]()
        if self._standing.may_keep(talk, run):
            found += [self._standing.keep, self._advancing.watch]
        if self._guessing.may_guess(talk, run):
            run.said = ModelGuesses(talk.ids)
            found.append(self._guessing.keep)
        return found

    async def _exchange_beside(
        self, talk: Talk, run: GenerationRun, beside: Collection[Beside]
    ) -> bool:
        """Converse as `_exchange` does, while the tasks in `beside` run."""
        if not beside:
            return await self._exchange(talk, run)
        try:
            async with trio.open_nursery() as nursery:
                for task in beside:
                    nursery.start_soon(task, talk, run)
                try:
                    return await self._exchange(talk, run)
                finally:
                    nursery.cancel_scope.cancel()
        except ExceptionGroup as group:  # of what `_exchange` has raised
            raise group.exceptions[0] from None

    async def _exchange(self, talk: Talk, run: GenerationRun) -> bool:
        """Converse as `_converse` does. Raises StageLost if a stage is lost."""
        watch = Watch(self._host, self._courier, run)
        spans = prompt_spans(run, talk.model.hidden)
        await self._recall(talk, run)
        if run.continuation is None or not run.continuation.lacking:
            self._fill(run, spans)
        else:
            self._rebuild(run, run.continuation.lacking)
        await self._windows.begin(talk, run)
        # The tokens of a job are not read as they come, and only stop strings end a text early.
        pace = JOB_PACE if talk.request.job and not talk.request.stop else EMIT_PACE
        while True:
            items = await self._hear(run, watch, pace)
            results = [item for item in items if isinstance(item, Arrived | Pooled)]
            if results and await talk.answer.add(results):
                return True
            for item in items:
                if isinstance(item, SessionError):
                    raise item
                if isinstance(item, SpanProgress | Pooled):
                    run.held.passed(item.position)
                    self._fill(run, spans)
                elif isinstance(item, Needed):
                    self._replay(run, item)
                elif isinstance(item, LeftOut):
                    run.held.under_way.clear()
                    self._fill(run, spans)
                elif isinstance(item, Complete):
                    self._fill(run, spans)
                elif isinstance(item, Faster) and await self._replacing.advance(talk, run, item):
                    return False
            if talk.must_yield:
                return False
            if not items and await self._replacing.outrun(talk, run):
                return False

    async def _hear(self, run: GenerationRun, watch: Watch, pace: float) -> list[Item]:
        """Wait for items of the session and return them. Tokens are collected for `pace` seconds.

        Returns an empty list if stages have missed their deadline; they are in `run.suspects`.
        Raises SessionError `silent` after TOKEN_TIMEOUT seconds.
        """
        while True:
            items = await run.heard(watch.pause(), pace)
            if items:
                return items
            if self._host.now() >= run.pace.heard_at + TOKEN_TIMEOUT:
                raise SessionError("silent", f"no stage said anything for {TOKEN_TIMEOUT:g} s")
            await watch.look()
            if run.suspects:
                return []

    async def _recall(self, talk: Talk, run: GenerationRun) -> None:
        """Tell the head the tokens on which the request's rules depend.

        Raises StageLost if the head is lost, and SessionError if it refuses.
        """
        head = run.peers[-1]
        try:
            await self._opening.recall(talk, run)
        except LinkClosed as error:
            raise lost_stage(run, head, error.message) from None
        except CallRefused as error:
            code = stage_code(error.code)
            if code in LOST_STATE or code == "unknown-session":
                raise lost_stage(run, head, error.message, cause=code) from None
            if code == "timeout":
                raise lost_stage(run, head, error.message) from None
            raise SessionError(code, f"{run.describe(-1)}: {error.message}") from None

    def _fill(self, run: GenerationRun, spans: Iterator[SpanMessage]) -> None:
        """Send the next spans of the prompt, or the last token of a chain that continues, so that
        as many are under way as all stages can compute."""
        most = min(len(run.chain) + 1, SPANS_UNDER_WAY)
        while len(run.held.under_way) < most and self._feed(run, spans):
            pass

    def _rebuild(self, run: GenerationRun, places: Collection[int]) -> None:
        """Have stages ask for what they lack. All stages are open now."""
        for place in places:
            message = Rebuild(run.session, run.epoch, place)
            self._post(run, place, "session.rebuild", message)

    def _replay(self, run: GenerationRun, need: Needed) -> None:
        """Send the first stage the tokens that it lacks."""
        start = need.start
        while start < need.stop:
            count = span_size(need.stop - start, 4)
            span = SpanMessage(run.session, run.epoch, 0, start, count, False, 0.0)
            self._post(run, 0, "session.span", span, run.ids[start : start + count])
            start += count

    def _feed(self, run: GenerationRun, spans: Iterator[SpanMessage]) -> bool:
        """Send the next prompt span to the first stage. Return whether there was one. Raises
        StageLost if the stage has no link."""
        if (span := next(spans, None)) is None:
            return False
        self._post(run, 0, "session.span", span, run.ids[span.start : span.start + span.count])
        run.held.under_way.append(span.start + span.count)
        return True

    def _post(
        self,
        run: GenerationRun,
        place: int,
        method: str,
        message: SpanMessage | Rebuild,
        tokens: Sequence[int] = (),
    ) -> None:
        """Send a message to a stage. Raises StageLost if it has no link."""
        try:
            self._courier.post(run.peers[place], method, message.header(), pack_tokens(tokens))
        except LinkClosed as error:
            raise lost_stage(run, run.peers[place], error.message) from None
