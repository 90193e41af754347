"""Continues a request over another chain when its chain has lost a stage, or one is too late."""

from collections.abc import Collection, Iterator

import trio

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import ACCUSATIONS, CRAWL_MOVES, MOVES, OPEN_ATTEMPTS, RETURN_LOOK
from ...errors import NoRoute, SessionError, StageLost
from ..chain import StageRefused
from ..generation import GenerationRun
from ..surviving.recovery import LOST_STATE, PREEMPTED, not_back, patience
from .items import Faster
from .mending import Mending
from .opening import Opening
from .refilling import Refilling
from .routes import Routes
from .talk import Talk


class Replacing:
    """Replaces chains of requests. The next session begins with the prompt and the tokens so
    far."""

    def __init__(
        self,
        host: Host,
        routes: Routes,
        opening: Opening,
        mending: Mending,
        refilling: Refilling,
    ) -> None:
        self._host = host
        self._refilling = refilling
        self._mending = mending
        self._routes = routes
        self._opening = opening

    async def replace(self, talk: Talk, run: GenerationRun, error: StageLost) -> None:
        """Continue over another chain after a stage was lost.

        If there is no other, waits for the stage if it will return, or else until another node has
        loaded its layers. The next session begins with the prompt and the tokens so far. Returns
        without a chain if the job must yield. Raises StageLost if no chain covers the model any
        more, and SessionError if the stage does not return in time or was lost too often during
        this request.
        """
        if error.cause:
            await trio.sleep(talk.crashes.note(error, talk.answer.made, self._host.now()))
        elif error.by is None:
            talk.lost.add(PeerId(error.peer))
        else:
            talk.accused[error.by] += 1
        if await self.move(talk, run, error):
            return
        # What waits for memory must not keep memory elsewhere, for which others may wait in turn.
        waits_for_it = bool(error.cause) and error.cause != PREEMPTED
        if waits_for_it and await self._returned(talk, run, PeerId(error.peer)):
            return
        if not error.cause or (waits_for_it and not self._routes.has_chain(talk)):
            if not error.cause:  # a stage that comes and goes could hold the answer without end
                talk.crashes.note(error, talk.answer.made, self._host.now())
            await self._refilling.wait(
                talk, run, error, lambda back: self._again(talk, run, error, back=back)
            )
            return
        await self._opening.leave(talk)
        try:
            await self._opening.start(talk, {PeerId(error.peer)})
        except NoRoute:
            raise error from None

    async def _again(self, talk: Talk, run: GenerationRun, error: StageLost, *, back: bool) -> bool:
        """Try once more to replace a lost stage, whose peer may be `back`, perhaps with other
        layers. Return whether the request continues."""
        peer = PeerId(error.peer)
        if not back:
            return await self.move(talk, run, error)
        return await self._mending.mend(talk, run, {peer}, {peer}) or await self.move(talk, run)

    async def _returned(self, talk: Talk, run: GenerationRun, peer: PeerId) -> bool:
        """Wait for a stage that has lost its state, while the others keep theirs. Return whether
        the session continues.

        Raises SessionError if the stage does not return in time.
        """
        began = self._host.now()
        while not talk.must_yield:
            talk.refused.clear()
            if await self._mending.mend(talk, run, {peer}, {peer}):
                return True
            waited, said = self._host.now() - began, talk.refused.get(peer)
            if said is None and not self._mending.is_quiet(peer):
                return False  # no chain leads over it
            if said is not None and said.code not in LOST_STATE:
                return False
            if waited >= patience(talk.refused, preempted=False):
                raise not_back(said or SessionError("unreachable", f"{peer} is quiet"), waited)
            await trio.sleep(RETURN_LOOK)
        return False

    async def outrun(self, talk: Talk, before: GenerationRun) -> bool:
        """Replace the suspects of a chain that is silent or crawls. Return whether another chain
        has taken over.

        Stages at which it crawls are used no more for this request, and left a few times only: if
        others crawl too, the prediction is wrong.
        """
        if not before.pace.crawls:
            return await self.move(talk, before)
        slow = before.suspects
        if talk.outrun >= CRAWL_MOVES or not await self.move(talk, before):
            return False
        talk.outrun += 1
        talk.lost |= slow
        return True

    async def advance(self, talk: Talk, before: GenerationRun, faster: Faster) -> bool:
        """Let a faster chain take over, whose new stages are standbys. Return whether it has."""
        without = {*before.peers} - {hop.peer for hop in faster.chain}
        returns = faster.chain == talk.moved_from
        talk.moves = MOVES if returns else talk.moves + 1
        if before.covered(without) != faster.chain:  # a standby has ended meanwhile
            return False
        if not await self._mending.mend(talk, before, without, ahead=True):
            return False
        talk.left |= without
        talk.moved_from = () if returns else before.chain
        return True

    async def move(self, talk: Talk, before: GenerationRun, error: StageLost | None = None) -> bool:
        """Replace a chain that has a late or lost stage. Return whether another chain has taken
        over.

        Returns False if there is no other chain, or if the previous one has recovered.
        """
        began = self._host.now()
        for without in self._suspects(talk, before, error):
            if await self._mending.mend(talk, before, without):
                return True
            if before.has_gone_on(began):
                return False
        most = len(talk.refused) + OPEN_ATTEMPTS
        for without in self._suspects(talk, before, error):
            while len(talk.refused) < most:
                try:
                    run = self._routes.next_run(talk, {*talk.lost, *without})
                except (NoRoute, SessionError):
                    break
                try:
                    await self._opening.open(talk, run, set(run.peers) - set(before.peers))
                except StageRefused:
                    if talk.run is not None:
                        continue
                    await self._opening.start(talk)
                    return True
                if talk.run is run:
                    await talk.answer.begin(run.chain)
                return talk.run is run
        return False

    def _suspects(
        self, talk: Talk, run: GenerationRun, error: StageLost | None
    ) -> Iterator[Collection[str]]:
        """Yield sets of peers to leave out of the next chain, the most likely cause first.

        If a stage has lost its neighbour, either of the two may be the unreachable one. Therefore,
        each is also left out alone. A stage that reports again and again is left out first.
        """
        if error is not None and error.by and talk.accused[error.by] > ACCUSATIONS:
            yield {error.by}
        lost: set[str] = {error.peer} if error is not None else set()
        parted = {*run.parted, *lost, *({error.by} if error is not None else ())}
        lost |= run.missed | run.suspects
        yield lost
        yield from ({peer} for peer in run.peers if peer in parted and {peer} != lost)
