"""Opens and closes the chains of a request."""

from collections.abc import Collection

import trio

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import MEMORY_LOOK, OPEN_ATTEMPTS, RETURN_LOOK
from ...errors import NoRoute, Overloaded, SessionError
from ..chain import Chains, StageRefused
from ..courier import Courier
from ..generation import GenerationRun
from ..surviving.recovery import FULL, not_back, patience, returning
from .routes import Routes
from .runs import OpenRuns
from .talk import Talk, refusal_told


class Opening:
    """Opens a chain for a request, waits for stages that will return, and closes chains."""

    def __init__(
        self, host: Host, courier: Courier, chains: Chains, routes: Routes, runs: OpenRuns
    ) -> None:
        self._host = host
        self._courier = courier
        self._chains = chains
        self._routes = routes
        self._choice = routes.choice
        self._runs = runs

    async def start(self, talk: Talk, awaited: Collection[PeerId] = ()) -> None:
        """Open a chain unless one is already open, and announce it to the client.

        If stages refuse because their engines restart or load, waits for them. Stages in `awaited`
        are known to do so. Returns without a chain if the job must yield meanwhile. Raises
        SessionError if stages refuse or do not return in time, and NoRoute if no chain covers the
        model.
        """
        try:
            await self._open_soon(talk, awaited)
        finally:
            self._choice.leave(talk.place)
        if talk.run is not None:
            await talk.answer.begin(talk.run.chain)
            if talk.request.apart is not None:
                talk.request.apart.used.update(talk.run.peers)

    async def _open_soon(self, talk: Talk, awaited: Collection[PeerId]) -> None:
        """Open a chain unless one is already open, as `start`."""
        began, pause = self._host.now(), RETURN_LOOK
        while talk.run is None:
            try:
                await self._open_any(talk, awaited)
            except Overloaded:
                raise
            except (SessionError, NoRoute) as error:
                # A node may be too busy with loading to be heard, and then it is in no chain.
                quiet = set(filter(self._courier.is_quiet, awaited))
                awaited = returning(talk.refused) or quiet
                if not awaited:
                    raise
                if self._host.now() >= began + patience(talk.refused, talk.crashes.preempted):
                    raise not_back(error, self._host.now() - began) from None
                full = {peer for peer, each in talk.refused.items() if each.code in FULL}
                talk.refused.clear()
                if full:
                    await self._choice.look_again(self._routes.wish(talk), full)
                    await self._choice.rest(talk.place, pause)
                else:
                    await trio.sleep(pause)
                pause = min(2 * pause, MEMORY_LOOK) if full else RETURN_LOOK
                if talk.must_yield:
                    return

    async def _open_any(self, talk: Talk, awaited: Collection[PeerId]) -> None:
        """Open the best chain, or another one if its stages refuse: OPEN_ATTEMPTS chains at most.

        Stages in `awaited` are opened before the others, which need not reserve KV until these have
        returned. Raises SessionError if stages refuse, and NoRoute if no chain covers the model.
        """
        while talk.run is None:
            run = await self._routes.some_run(talk)
            try:
                await self.open(talk, run, set(run.peers) & set(awaited) or run.peers)
            except StageRefused:
                if len(talk.refused) >= OPEN_ATTEMPTS:
                    raise refusal_told(talk, talk.refused[next(reversed(talk.refused))]) from None

    async def open(self, talk: Talk, run: GenerationRun, fresh: Collection[PeerId]) -> None:
        """Open a run, beginning with the stages in `fresh`, which are not part of the previous run.

        When these are open, the previous run is closed, and then the stages that both runs share
        are opened. If the previous chain has sent a message in the meantime, it stays and the new
        run is closed. Raises StageRefused if a stage refuses.
        """
        before, began = talk.run, self._host.now()
        talk.activations = talk.activations or self._chains.activations(talk.model, run)
        run.activations = talk.activations
        self._runs.add(run, talk.model)
        try:
            await self._chains.open(run, talk.model, talk.request.sampling, fresh)
            if before is not None and before.has_gone_on(began):
                return  # the previous chain continues
            await self.leave(talk)
            rest = set(run.peers) - set(fresh)
            await self._chains.open(run, talk.model, talk.request.sampling, rest)
            run.pace.heard_at = self._host.now()
            self._choice.opened(run)
            talk.run = run
        except StageRefused as refusal:
            talk.refused[refusal.peer] = refusal.error
            raise
        finally:
            if talk.run is not run:
                await self._close(run)

    async def yield_turn(self, talk: Talk) -> None:
        """If the request's turn has ended, close its chain and wait for the next turn. Then open a
        chain if none is open.

        Only requests for jobs have turns: interactive requests have priority over them.
        """
        turn = talk.request.turn
        if turn is not None and turn.is_over():
            await self.leave(talk)
            await turn.come()
            talk.refused.clear()
        if talk.run is None:
            await self.start(talk)

    async def recall(self, talk: Talk, run: GenerationRun) -> None:
        """Tell the head of a chain the tokens so far, as `Chains.recall`."""
        await self._chains.recall(run, run.prompt - (len(talk.ids) - talk.answer.made))

    async def leave(self, talk: Talk) -> None:
        """Close the request's chain, if one is open."""
        run, talk.run = talk.run, None
        if run is not None:
            await self._close(run)
            self._choice.freed(talk.model.root)

    async def _close(self, run: GenerationRun) -> None:
        try:
            await self._chains.close(run, self._runs.model(run))
        finally:
            self._choice.closed(run, self._runs.model(run))
            self._runs.remove(run)
