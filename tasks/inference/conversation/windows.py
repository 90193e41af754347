"""Sends windows of drafts to the first stages of chains."""

from contextlib import suppress

from ....transport.errors import LinkClosed
from ...drafting.controller import Controller
from ...drafting.defaults import AHEAD, WINDOW
from ...drafting.drafter import Accuracy
from ...drafting.sessions import Drafting
from ...drafting.speculation import Speculation
from ..choice import Choice
from ..courier import Courier
from ..generation import GenerationRun
from ..messages import SampledToken, SpanMessage, pack_tokens
from .answer import Answer
from .recomputing import KnownAnswer
from .talk import Talk


class Windows:
    """Makes drafts for the sessions of one gateway, and sends them to the chains in windows."""

    def __init__(self, courier: Courier, drafting: Drafting, choice: Choice) -> None:
        """`choice` predicts what windows take."""
        self._courier = courier
        self._choice = choice
        self.drafting = drafting
        """Guesses the next tokens of all answers, if it is on."""

    async def begin(self, talk: Talk, run: GenerationRun) -> None:
        """Begin to draft what a chain will say, if all of its stages compute windows.

        The sessions of jobs have no drafts: many of them fill each step, in which the rows of
        wrong guesses take as long as other sessions' rows. Known answers are drafts.
        """
        if isinstance(talk.answer, KnownAnswer):
            await self._begin_known(talk.answer, run)
            return
        if not self.may_draft(talk, run):
            return
        run.speculation = self.drafting.begin(
            *(talk.request.user, talk.model.identity, len(run.chain), run.prompt + run.new),
            *(talk.drafts, self._choice.window_prices(run, talk.model), run.said),
        )
        await run.speculation.read(run.ids[: run.prompt])
        self.send(run)

    def may_draft(self, talk: Talk, run: GenerationRun) -> bool:
        """Return whether guesses of an answer may be verified by its chain."""
        drafts = run.can_draft and self.drafting.on and isinstance(talk.answer, Answer)
        return drafts and not run.terms.job and run.new >= 2

    async def _begin_known(self, answer: KnownAnswer, run: GenerationRun) -> None:
        if not run.can_draft or run.new < 2:
            return
        stages, limit = len(run.chain), run.prompt + run.new
        controller = Controller(stages, fixed=(WINDOW, AHEAD // WINDOW))
        drafter = answer.drafter()
        run.speculation = Speculation(drafter, Accuracy(), controller, stages, limit)
        await run.speculation.read(run.ids[: run.prompt])
        self.send(run)

    async def end(self, talk: Talk) -> None:
        """Remember a complete answer for the user's later requests."""
        if talk.request.job:
            return
        await self.drafting.end(talk.request.user, talk.model.identity, talk.ids)

    def follow(self, run: GenerationRun, token: SampledToken, now: float) -> None:
        """Draft behind the next token of a session, which has arrived."""
        if run.speculation is not None:
            run.speculation.take(token.token, token.seconds, now)
            self.send(run)

    def send(self, run: GenerationRun) -> None:
        """Send the windows that are worth computing now to the first stage."""
        if run.speculation is None:
            return
        for window in run.speculation.windows():
            span = SpanMessage(
                *(run.session, run.epoch, 0, window.start, len(window.tokens), True, 0.0),
                draft=True,
                branch=window.branch,
            )
            payload = pack_tokens(window.tokens)
            with suppress(LinkClosed):  # what notices the lost stage replaces the chain
                self._courier.post(run.peers[0], "session.span", span.header(), payload)
