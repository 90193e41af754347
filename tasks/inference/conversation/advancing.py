"""Moves running answers to chains that have become faster than their own.

After a loss, the rest of an answer runs over what was left. A node that joins later may make a
faster chain, and a chain whose links were guessed may be slower than was predicted. The stages of a
faster chain become standbys first, while the answer goes on, and then take over at once.
"""

from collections.abc import Collection, Sequence
from heapq import nsmallest
from itertools import combinations, product

import trio

from ....state.directory import Directory
from ....transport.identity import PeerId
from ...defaults import MOVE_AGAIN, MOVE_LOOK, MOVE_PAIRED, MOVE_PAUSE, MOVE_RATIO, MOVES
from ...routing.defaults import EXPECTED_TOKENS
from ...routing.paths import Hop
from ..choice import Choice
from ..courier import Courier
from ..generation import GenerationRun
from .items import Faster
from .standing import Standing
from .talk import Talk

Timed = tuple[tuple[Hop, ...], float]
"""A chain, and its seconds for a token."""


class Advancing:
    """Finds faster chains for running answers.

    An answer moves MOVES times at most, and never to a stage that it has left, so that it does not
    oscillate. It may undo its last move, and does not move again after that: the new stages were
    slower than they had claimed, and others may lie as well.
    """

    def __init__(
        self, courier: Courier, directory: Directory, choice: Choice, standing: Standing
    ) -> None:
        self._courier = courier
        self._directory = directory
        self._choice = choice
        self._standing = standing

    async def watch(self, talk: Talk, run: GenerationRun) -> None:
        """Offer faster chains to a session as soon as they are ready, until one has taken over and
        this is cancelled."""
        version = self._directory.version
        while talk.moves < MOVES or talk.moved_from:
            await trio.sleep(MOVE_LOOK)
            if not run.round_s:
                continue  # too few tokens have come over this chain
            chain = await self._faster(talk, run)
            if chain and await self._standing.prepare(talk, run, chain):
                run.items.put(Faster(chain))
                await trio.sleep(MOVE_AGAIN)  # until it has taken over, or failed
            elif not chain:
                with trio.move_on_after(MOVE_AGAIN):
                    version = await self._directory.changed(version)

    async def _faster(self, talk: Talk, run: GenerationRun) -> tuple[Hop, ...]:
        """Return a chain of other replicas that is so much faster that a move pays, or an empty
        chain.

        The round trips of its links must be known. If many were guessed, the best guess would
        usually be too low.
        """
        left = min(talk.new - talk.answer.made, EXPECTED_TOKENS)
        measured, now_s = run.times.latest_s, run.round_s
        if not now_s or not left:
            return ()
        self._choice.measure(run, talk.model)
        chain, then_s = await self.best(talk, run)
        saved = left * measured * (1 - then_s / now_s)
        if then_s > MOVE_RATIO * now_s or chain == run.chain:
            return ()
        paid = saved >= MOVE_PAUSE + self._standing.rebuild_s(talk, run, chain)
        return chain if paid else ()

    async def best(self, talk: Talk, run: GenerationRun) -> Timed:
        """Return the fastest chain of stages and replicas with known links, and its seconds for a
        token.

        If the last move was a mistake, that is the chain before it, however fast others seem.
        Otherwise only two kinds of chains are compared: those that were measured, and those that
        differ from the present one in one or two places. Further moves reach the others. Other
        tasks run between the places, because a long chain with many replicas would stall them.
        """
        best = run.chain, self._choice.token_s(run.chain, talk.model)
        if talk.moved_from and await self._may_return(talk, run):
            seconds = self._choice.token_s(talk.moved_from, talk.model)
            if seconds <= MOVE_RATIO * run.round_s:
                return talk.moved_from, seconds
        if talk.moves >= MOVES:
            return best
        replicas = list[list[Hop]]()
        for hop in run.chain:
            await trio.lowlevel.checkpoint()
            replicas.append(self._replicas(talk, hop))
        for chain in self._choice.measured(talk.model):
            if _consists(chain, run.chain, replicas):
                seconds = self._choice.token_s(chain, talk.model)
                best = (chain, seconds) if seconds < best[1] else best
        return await self._changed(talk, best, replicas)

    async def _changed(self, talk: Talk, best: Timed, replicas: Sequence[Collection[Hop]]) -> Timed:
        """Return the fastest chain: the best one, or one that differs from it in one or two places.

        Two places are tried together: a stage and the next one may both be near each other and far
        from the others. They are tried with the MOVE_PAIRED best replicas of each place.
        """
        base, found = best[0], list[list[tuple[int, Hop]]]()
        taken = {hop.peer for hop in base}
        for place, others in enumerate(replicas):
            await trio.lowlevel.checkpoint()
            timed = list[tuple[float, PeerId, Hop]]()
            for other in (each for each in others if each.peer not in taken):
                chain = _with(base, (place, other))
                timed.append((self._choice.token_s(chain, talk.model), other.peer, other))
                best = self._faster_of(best, chain, timed[-1][0])
            found.append([(place, other) for *_, other in nsmallest(MOVE_PAIRED, timed)])
        for firsts, seconds in combinations(found, 2):
            await trio.lowlevel.checkpoint()
            for one, two in product(firsts, seconds):
                if one[1].peer != two[1].peer:
                    chain = _with(base, one, two)
                    best = self._faster_of(best, chain, self._choice.token_s(chain, talk.model))
        return best

    def _faster_of(self, best: Timed, chain: tuple[Hop, ...], seconds: float) -> Timed:
        """Return the faster one of two chains. Only one with known links replaces the best one."""
        return (chain, seconds) if seconds < best[1] and self._choice.knows(chain) else best

    async def _may_return(self, talk: Talk, run: GenerationRun) -> bool:
        """Return whether the stages of the chain before the last move still serve their layers."""
        replicas = list[list[Hop]]()
        for hop in run.chain:
            await trio.lowlevel.checkpoint()
            found = self._standing.replicas(talk, hop)
            replicas.append([other for other in found if self._courier.reaches(other.peer)])
        return _consists(talk.moved_from, run.chain, replicas)

    def _replicas(self, talk: Talk, hop: Hop) -> list[Hop]:
        """Return the linked replicas of a stage that this answer has not left: the nearest ones."""
        found = [
            other
            for other in self._standing.replicas(talk, hop)
            if other.peer not in talk.left and self._courier.reaches(other.peer)
        ]
        return self._standing.nearest(talk, found)


def _with(chain: Sequence[Hop], *changes: tuple[int, Hop]) -> tuple[Hop, ...]:
    """Return a chain with other stages at some places."""
    at = dict(changes)
    return tuple(at.get(place, hop) for place, hop in enumerate(chain))


def _consists(
    chain: Sequence[Hop], present: Sequence[Hop], replicas: Sequence[Collection[Hop]]
) -> bool:
    """Return whether a chain has at each place the stage of the present one, or a replica of it."""
    places = zip(chain, present, replicas, strict=False)
    return len(chain) == len(present) and all(
        hop == own or hop in found for hop, own, found in places
    )
