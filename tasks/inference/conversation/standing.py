"""Standbys for the stages of a chain whose state would take long to rebuild.

A standby is a replica that has the session open. If the stage is lost, the standby takes its place.
It has its links to the other stages by then, which would else begin over a relay, and what a stage
replays would take long there. It gets the KV of the stage as it grows, once that takes long to
rebuild, so that the pause does not grow with the context.
"""

from collections.abc import Sequence
from heapq import nsmallest

import trio

from ....state.directory import Directory
from ....state.membership.record import MemberRecord, ShardRecord
from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import (
    COPY_TIMEOUT,
    MOVE_LOOK,
    MOVE_REPLICAS,
    STANDBY_AFTER,
    STANDBY_AGAIN,
    STANDBY_ANSWERS,
    STANDBY_LOOK,
    STANDBY_RATE,
    STANDBY_WORTH,
)
from ...engine.families import DTYPE_BYTES
from ...engine.interface import SessionId
from ...engine.kv.blocks import BLOCK
from ...errors import BadMessage
from ...routing.paths import Hop
from ..chain import Chains
from ..choice import Choice
from ..courier import Courier
from ..generation import GenerationRun, Standby
from ..messages import parse_dtype
from ..shards import parts_of
from ..surviving.copying import Copied, Copy
from .talk import Talk


class Standing:
    """Finds standbys, and has stages copy their KV to them."""

    def __init__(
        self, host: Host, courier: Courier, directory: Directory, chains: Chains, choice: Choice
    ) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory
        self._chains = chains
        self._choice = choice
        self._early = set[SessionId]()  # sessions with standbys before these are worth a copy

    def may_keep(self, talk: Talk, run: GenerationRun) -> bool:
        """Return whether a chain may have standbys: for interactive answers, without adapters,
        which a standby would have to fetch, and where each peer is one stage."""
        own = talk.request.turn is None and not talk.model.adapter
        return own and not run.terms.pooled and len(run.places) == len(run.chain)

    async def keep(self, talk: Talk, run: GenerationRun) -> None:
        """Keep standbys for the stages of a chain, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for place in range(len(run.chain)):
                    nursery.start_soon(self._keep, talk, run, place)
        finally:
            self._early.discard(run.session)

    async def _keep(self, talk: Talk, run: GenerationRun, place: int) -> None:
        """Keep a standby for the stage at one place. Copy KV to it once that is worth it."""
        while True:
            await trio.sleep(STANDBY_LOOK)
            standby = run.standbys.get(place)
            hop = standby.hop if standby is not None else run.chain[place]
            worth = self._rebuild_s(talk, run, place, hop) >= STANDBY_WORTH
            if standby is not None:
                if worth and standby.ready:
                    await self._copy(talk, run, place)
            elif worth or self._may_begin_early(run):
                version = self._directory.version
                if not await self._begin(talk, run, place):
                    await self._await_another(version)

    async def _await_another(self, version: int) -> None:
        """Wait until there may be a standby: a node has joined, or one may take it now. `version`
        is that of the directory in which there was none."""
        await trio.sleep(MOVE_LOOK)
        with trio.move_on_after(STANDBY_AGAIN - MOVE_LOOK):
            await self._directory.changed(version)

    def _may_begin_early(self, run: GenerationRun) -> bool:
        """Return whether a session may have standbys that get no copies yet: one that has gone on
        for a while, and few sessions at once, since stages have room for few standbys."""
        if self._host.now() < run.times.began + STANDBY_AFTER:
            return False
        if len(self._early) < STANDBY_ANSWERS:
            self._early.add(run.session)
        return run.session in self._early

    def _rebuild_s(
        self, talk: Talk, run: GenerationRun, place: int, other: Hop, have: int = 0
    ) -> float:
        """Return the predicted seconds until the stage `other`, which has the state of `have`
        positions, has that of the stage at a place: of the hidden states on their way to it, which
        is long over a relay, and of computing them."""
        hop, model, rate = run.chain[place], talk.model, 0.0
        row = model.hidden * DTYPE_BYTES[parse_dtype(hop.dtype)] if place else 4
        if place and other != hop:
            rate = self._choice.rate(run.peers[place - 1], other.peer)
        lacking = max(run.computed - have, 0)
        computing = self._choice.believed(hop, model).row_s
        return lacking * (computing + row / (rate or STANDBY_RATE))

    async def prepare(self, talk: Talk, run: GenerationRun, chain: Sequence[Hop]) -> bool:
        """Make the stages of another chain standbys of this one. Return whether they can take over
        without a long pause."""
        for place, (hop, other) in enumerate(zip(run.chain, chain, strict=True)):
            if hop == other:
                continue
            before = run.standbys.get(place)
            if before is None or before.hop != other:
                if before is not None and run.lose_standby(before.hop.peer):
                    await self._chains.drop(run, {before.hop.peer}, before.epoch)
                if not await self._open(talk, run, place, other):
                    return False
            standby = run.standbys[place]
            lacking_s = self._rebuild_s(talk, run, place, other, standby.have)
            # Copies come by blocks, so the last ones are missing all the time.
            behind = run.computed - standby.have >= 2 * BLOCK and lacking_s >= STANDBY_WORTH
            if behind or not standby.ready:
                return False
        return True

    def rebuild_s(self, talk: Talk, run: GenerationRun, chain: Sequence[Hop]) -> float:
        """Return the predicted seconds until the stages of another chain have their state. Those
        that stand by already have a part of it."""
        have = {(place, each.hop): each.have for place, each in run.standbys.items()}
        pairs = enumerate(zip(run.chain, chain, strict=True))
        new = [(place, other) for place, (hop, other) in pairs if hop != other]
        return sum(self._rebuild_s(talk, run, *each, have.get(each, 0)) for each in new)

    async def _begin(self, talk: Talk, run: GenerationRun, place: int) -> bool:
        """Open a standby for a stage. Return whether there is one now."""
        hop = self.candidate(talk, run, run.chain[place])
        return hop is not None and await self._open(talk, run, place, hop)

    async def _open(self, talk: Talk, run: GenerationRun, place: int, hop: Hop) -> bool:
        """Open a standby at a replica of a stage. Return whether it is there."""
        standby = Standby(hop, run.epoch)
        run.standbys[place] = standby  # no other place takes this peer
        try:
            sampling = talk.request.sampling
            standby.ready = await self._chains.stand_by(run, place, hop, talk.model, sampling)
        finally:
            if not standby.ready:
                await self._give_up(talk, run, standby)
        return run.standbys.get(place) is standby

    def candidate(self, talk: Talk, run: GenerationRun, hop: Hop) -> Hop | None:
        """Return the replica of a stage that may stand by for it, or None: one that is linked, with
        which the chain would be fastest."""
        used = {*run.peers, *(each.hop.peer for each in run.standbys.values())}
        found = dict[tuple[bool, float, PeerId], Hop]()
        free = [other for other in self.replicas(talk, hop) if other.peer not in used]
        for other in self.nearest(talk, free):
            chain = [other if each == hop else each for each in run.chain]
            seconds = self._choice.token_s(chain, talk.model)
            found[not self._courier.reaches(other.peer), seconds, other.peer] = other
        return found[min(found)] if found else None

    def nearest(self, talk: Talk, replicas: list[Hop]) -> list[Hop]:
        """Return the replicas to compare: linked ones before others, those with the shortest
        believed times, MOVE_REPLICAS at most, because a chain is predicted with each."""
        if len(replicas) <= MOVE_REPLICAS:
            return replicas

        def order(other: Hop) -> tuple[bool, float]:
            trip = self._courier.round_trip(other.peer) or 0.0
            seconds = self._choice.believed(other, talk.model).token_s
            return not self._courier.reaches(other.peer), seconds + trip

        return nsmallest(MOVE_REPLICAS, replicas, key=order)

    def replicas(self, talk: Talk, hop: Hop) -> list[Hop]:
        """Return the replicas of a stage that may stand by for it, apart from itself."""
        without = {hop.peer, *talk.unfit, *talk.lost, *talk.refused, *self._chains.avoided()}
        members = self._directory.members()
        wanted, found = _shard_of(members.get(hop.peer), talk.model.root, hop), []
        for peer, record in members.items():
            shard = _shard_of(record, talk.model.root, hop)
            if shard is None or wanted is None or shard.exactness != wanted.exactness:
                continue  # another class of exactness takes no exact copies
            if peer not in without and not self._courier.is_quiet(peer):
                found.append(Hop(peer, hop.parts, hop.dtype))
        return found

    async def _copy(self, talk: Talk, run: GenerationRun, place: int) -> None:
        """Have a stage copy what its standby lacks, and give the standby up if that fails."""
        standby = run.standbys[place]
        while standby.have < (stop := run.computed // BLOCK * BLOCK):
            message = Copy(run.session, run.epoch, place, standby.hop.peer, stop)
            call = run.peers[place], "session.copy", message.header()
            before, standby.fed = standby.have, True
            try:
                reply = await self._courier.call(*call, timeout=2 * COPY_TIMEOUT)
                standby.have = min(Copied.parse(reply.header).have, stop)
            except (CallRefused, LinkClosed, BadMessage) as error:
                if error.code == "not-copied":  # else the chain itself may be about to change
                    await self._give_up(talk, run, standby)
                return
            if standby.have <= before or run.standbys.get(place) is not standby:
                return

    async def _give_up(self, talk: Talk, run: GenerationRun, standby: Standby) -> None:
        """Close a standby, and take no other one at that peer for this request."""
        talk.unfit.add(standby.hop.peer)
        if run.lose_standby(standby.hop.peer):
            await self._chains.drop(run, {standby.hop.peer}, standby.epoch)


def _shard_of(record: MemberRecord | None, root: str, hop: Hop) -> ShardRecord | None:
    """Return a member's shard with the layers of a hop, or None."""
    shards = record.shards if record is not None else ()
    wanted = root, hop.parts, hop.dtype
    return next((s for s in shards if (s.root, parts_of(s), s.dtype) == wanted), None)
