"""Choice of the chain for a request's next session."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import trio

from ....state.directory import Directory
from ....transport.host.seam import Host
from ...defaults import SEEK_TIME
from ...errors import NoRoute
from ..chain import Chains
from ..choice import Choice, Wish
from ..courier import Courier
from ..generation import GenerationRun
from ..session import SESSION_BYTES
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
        self.choice = Choice(host, courier, directory, chains)
        """The gateway's knowledge of the stages."""

    async def some_run(self, talk: Talk) -> GenerationRun:
        """Return a session over the best chain. If the members form no chain, look for more members
        first.

        Raises NoRoute if these do not help within SEEK_TIME, and Overloaded if the best chain would
        make the request wait for too long.
        """
        version = self._directory.version
        wish, session = self.wish(talk), self._host.entropy(SESSION_BYTES)
        plan = await self.choice.look(wish, {*talk.refused, *talk.lost}, session)
        if plan is not None:
            return self.choice.planned(plan, wish, session, talk.terms)
        try:
            return self.next_run(talk, talk.lost)
        except NoRoute:
            if not await self._seek(talk.model.root):
                raise
        with trio.move_on_after(SEEK_TIME):
            while True:
                with suppress(NoRoute):
                    return self.next_run(talk, talk.lost)
                version = await self._directory.changed(version)
        return self.next_run(talk, talk.lost)

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
            talk.model, talk.ids, talk.new - made, names, talk.place, talk.said, first=first
        )
