"""Sends the prompt over a chain and receives the tokens."""

from collections.abc import Iterator

from ....transport.errors import LinkClosed
from ....transport.host.seam import Host
from ...defaults import (
    PREFILL_BYTES,
    PREFILL_TOKENS,
    QUIET_LOOK,
    SPANS_UNDER_WAY,
    TOKEN_TIMEOUT,
)
from ...errors import SessionError, StageLost
from ..courier import Courier
from ..generation import Arrived, GenerationRun, Item, Pooled
from ..session import SpanMessage, SpanProgress, pack_tokens
from .opening import Opening
from .replacing import Replacing
from .talk import Talk, lost_stage
from .windows import Windows


class Conversation:
    """Holds requests' conversations with their chains until the answers are complete."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        opening: Opening,
        replacing: Replacing,
        windows: Windows,
    ) -> None:
        self._host = host
        self._courier = courier
        self._opening = opening
        self._replacing = replacing
        self._windows = windows

    async def hold(self, talk: Talk) -> None:
        """Converse over one chain after another until the answer is complete.

        Raises what `Gateway.generate` raises.
        """
        while talk.run is None or not await self._converse(talk):
            await self._opening.give_way(talk)

    async def _converse(self, talk: Talk) -> bool:
        """Send the prompt over the open chain and receive the tokens. Return whether the answer is
        complete.

        The prompt is sent in spans, a few ahead of the head's progress. Returns False if another
        chain has taken over, or if the job must yield.
        """
        run = talk.run
        assert run is not None
        spans = _prompt_spans(run, talk.model.hidden)
        try:
            for _ in range(min(len(run.route) + 1, SPANS_UNDER_WAY)):
                self._feed(run, spans)
            await self._windows.begin(talk, run)
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
                if not items and await self._replacing.move(talk, run):
                    return False
        except StageLost as error:
            await self._replacing.replace(talk, run, error)
            return False

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
            raise lost_stage(run, run.peers[0], error.message) from None


def _prompt_spans(run: GenerationRun, hidden: int) -> Iterator[SpanMessage]:
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
