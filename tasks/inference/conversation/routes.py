"""Choice of the chain for a request's next session."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import trio

from ....state.directory import Directory
from ....transport.host.seam import Host
from ...defaults import ASK_AGAIN, LOAD_PATIENCE, SEEK_TIME
from ...errors import NoRoute
from ..chain import Chains
from ..choice import Choice, Wish
from ..courier import Courier
from ..generation import GenerationRun
from ..messages import SESSION_BYTES
from .asking import Asking
from .talk import Talk, refusal_told

Seek = Callable[[str], Awaitable[bool]]
"""Establishes links to nodes that serve layers of a model (by root) and are not members yet.

Returns whether any were found. Their records arrive one round trip later.
"""


class Routes:
    """Chooses chains among the members that this node knows. `avoided` are used only as a last
    resort."""

    def __init__(
        self, host: Host, courier: Courier, directory: Directory, chains: Chains, seek: Seek
    ) -> None:
        self._host = host
        self._directory = directory
        self._chains = chains
        self._seek = seek
        self._asking = Asking(host, courier, directory)
        self.choice = Choice(host, courier, directory, chains)
        """The gateway's knowledge of the stages."""

    async def some_run(self, talk: Talk) -> GenerationRun:
        """Return a session over the best chain. If the members form no chain, look for more members
        first, and then have a node load the model.

        Raises NoRoute if that does not help, and Overloaded if the best chain would make the
        request wait for too long, or if the nodes have no room for the model yet.
        """
        version = self._directory.version
        wish, session = self.wish(talk), self._host.entropy(SESSION_BYTES)
        plan = await self.choice.look(wish, {*talk.refused, *talk.lost}, session)
        if plan is not None:
            return self.choice.planned(plan, wish, session, talk.terms)
        with suppress(NoRoute):
            return self.next_run(talk, talk.lost)
        if await self._seek(talk.model.root):
            run = await self._run_within(talk, SEEK_TIME, version)
            if run is not None:
                return run
        # A chain that served a moment ago comes back by itself, and jobs move no models.
        if wish.first and not talk.refused and not talk.lost:
            until = self._host.now() + LOAD_PATIENCE
            while self._host.now() < until and await self._asking.comes(talk.model):
                run = await self._run_within(talk, ASK_AGAIN, self._directory.version)
                if run is not None:
                    return run
            if self._host.now() >= until:
                self._asking.waited(talk.model.root)
        return self.next_run(talk, talk.lost)

    async def _run_within(self, talk: Talk, seconds: float, version: int) -> GenerationRun | None:
        """Return a session as soon as members form a chain, None if that takes too long. `version`
        is that of the directory in which there was none."""
        with trio.move_on_after(seconds):
            while True:
                with suppress(NoRoute):
                    return self.next_run(talk, talk.lost)
                version = await self._directory.changed(version)
        return None

    def has_chain(self, talk: Talk) -> bool:
        """Return whether members that are not lost form a chain for the rest of a request."""
        return self.choice.has_chain(self.wish(talk), talk.lost)

    def next_run(self, talk: Talk, without: Collection[str]) -> GenerationRun:
        """Create a session over the best chain for the remaining tokens, without the peers in
        `without`.

        Raises NoRoute if no chain covers the model. If a stage has refused before, raises its
        refusal (SessionError) instead.
        """
        session = self._host.entropy(SESSION_BYTES)
        gone = {*talk.refused, *without}
        try:
            return self.choice.run(self.wish(talk), gone, session, talk.terms)
        except NoRoute:
            for error in talk.refused.values():  # a stage's refusal is more informative
                raise refusal_told(talk, error) from None
            raise

    def wish(self, talk: Talk) -> Wish:
        """Return what a request needs of a chain now."""
        made = talk.answer.made
        names = b"" if talk.terms.pooled else self._chains.names(talk.model, talk.ids)
        first = not made and talk.request.turn is None and not talk.crashes.preempted
        return Wish(
            talk.model, talk.ids, talk.new - made, names, talk.place, talk.replies, first=first
        )
