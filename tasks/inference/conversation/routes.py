"""Choice of the chain for a request's next session."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import trio

from ....state.directory import Directory
from ....transport.host.seam import Host
from ...defaults import SEEK_TIME
from ...errors import NoRoute
from ..chain import Chains
from ..courier import Courier
from ..generation import GenerationRun
from ..routing import Hop, Members, Preference, find_route
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
        self._courier = courier
        self._directory = directory
        self._chains = chains
        self._seek = seek

    async def some_run(self, talk: Talk) -> GenerationRun:
        """Return a session over the best chain. If the members form no chain, look for more members
        first.

        Raises NoRoute if these do not help within SEEK_TIME.
        """
        version = self._directory.version
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

    def next_run(self, talk: Talk, without: Collection[str]) -> GenerationRun:
        """Create a session over the best chain for the remaining tokens, without the peers in
        `without`.

        Raises NoRoute if no chain covers the model. If a stage has refused before, raises its
        refusal (SessionError) instead.
        """
        session = self._host.entropy(SESSION_BYTES)
        new = talk.new - talk.answer.made
        without = {*talk.refused, *without}
        members = {
            peer: record
            for peer, record in self._directory.members().items()
            if peer not in without and not self._courier.is_quiet(peer)
        }
        linked = {peer: members[peer] for peer in members if self._courier.reaches(peer)}
        try:
            try:
                route = self._route(talk, linked, new, session)
            except NoRoute:  # a new link takes time, so chains of linked members are tried first
                route = self._route(talk, members, new, session)
        except NoRoute:
            for error in talk.refused.values():  # a stage's refusal is more informative
                raise refusal_told(talk, error) from None
            raise
        return GenerationRun(session, route, talk.ids, new, self._host.now(), talk.terms)

    def _route(self, talk: Talk, members: Members, new: int, session: bytes) -> tuple[Hop, ...]:
        return find_route(
            members,
            talk.model.root,
            talk.model.layers,
            len(talk.ids) + new,
            Preference(self._courier.peer, session, self._chains.avoided()),
            answer=new,
        )
