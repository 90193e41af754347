"""Replaces the lost stages of a chain. The others keep their state."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ....state.directory import Directory
from ....state.membership.record import MemberRecord, ShardRecord
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import MAX_POSITIONS, OPEN_ATTEMPTS
from ...routing.paths import Hop
from ..chain import Chains, StageRefused
from ..choice import Choice
from ..courier import Courier
from ..generation import GenerationRun
from ..surviving.continuing import Continuation
from .runs import OpenRuns
from .talk import Talk
from .watch import Questions


class Mending:
    """Continues sessions over chains in which only the lost stages are replaced."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        directory: Directory,
        chains: Chains,
        runs: OpenRuns,
        choice: Choice,
    ) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory
        self._chains = chains
        self._runs = runs
        self._choice = choice

    async def mend(
        self,
        talk: Talk,
        before: GenerationRun,
        without: Collection[str],
        returning: Collection[str] = (),
        *,
        ahead: bool = False,
    ) -> bool:
        """Replace the stages in `without`, and those that do not answer meanwhile. Return whether
        the session continues.

        Those in `returning` may be opened again. The session is left as it is if there is no other
        stage for some layers, or if its chain goes on by itself and is not left `ahead` of need.
        """
        lost = {*without, *(peer for peer in before.peers if not self._courier.reaches(peer))}
        for _ in range(OPEN_ATTEMPTS):
            run = self._mended(talk, before, lost, returning)
            if run is None or run.continuation is None:
                return False
            try:
                return await self._open(talk, before, run, ahead=ahead)
            except StageRefused as refusal:
                if refusal.peer in run.continuation.kept:
                    lost.add(refusal.peer)
                elif silent := await self._silent(before, run.continuation.kept):
                    lost |= silent  # a new stage does not reach its neighbour
                else:
                    talk.refused[refusal.peer] = refusal.error
        return False

    def is_quiet(self, peer: PeerId) -> bool:
        """Return whether a peer is silent for now, perhaps because it loads."""
        return self._courier.is_quiet(peer)

    async def _silent(self, before: GenerationRun, kept: Collection[PeerId]) -> set[PeerId]:
        """Return the stages of a chain that do not answer now."""
        answers = await Questions(self._host, self._courier).ask(before, self._host.now())
        places = enumerate(before.peers)
        return {peer for place, peer in places if peer in kept and place not in answers.states}

    def _mended(
        self,
        talk: Talk,
        before: GenerationRun,
        lost: Collection[str],
        returning: Collection[str],
    ) -> GenerationRun | None:
        """Return the session of `before` with other stages in place of those that are lost.

        Returns None if no stage is left, or if no other chain with those that are left covers the
        model.
        """
        covered = before.covered({*lost, *filter(self._courier.is_quiet, _standing(before))})
        kept = {hop.peer: hop for hop in covered if hop.peer not in lost}
        # Places are known by peer, but a peer may be several stages.
        if len(before.places) < len(before.chain) or not kept or before.terms.pooled:
            return None
        new = talk.new - talk.answer.made
        chain = covered
        if len(kept) < len(covered):
            members = self._around(talk, covered, kept, set(lost) - set(returning))
            # A new link takes time, so linked members are tried first.
            linked = {peer: members[peer] for peer in members if self._courier.reaches(peer)}
            wanted = talk.model, before.session
            chain = self._choice.replaced(*wanted, linked, len(talk.ids), new)
            chain = chain or self._choice.replaced(*wanted, members, len(talk.ids), new)
        if any(hop not in chain for hop in kept.values()):
            return None
        run = GenerationRun(before.session, chain, talk.ids, new, self._host.now(), before.terms)
        if len(run.places) < len(run.chain):
            return None
        talk.epoch += 1
        run.epoch, run.start = talk.epoch, min(before.computed, len(talk.ids) - 1)
        run.activations, run.pace.token_s = before.activations, before.pace.token_s
        run.continuation = Continuation(run.start, frozenset(kept))
        run.can_draft = before.can_draft
        run.named = min(before.named, _named_places(before, chain))
        run.standbys = {
            place: each
            for place, each in before.standbys.items()
            if each.hop not in chain and chain[place : place + 1] == before.chain[place : place + 1]
        }
        return run

    def _around(
        self,
        talk: Talk,
        before: Sequence[Hop],
        kept: Mapping[PeerId, Hop],
        without: Collection[str],
    ) -> dict[PeerId, MemberRecord]:
        """Return the members with those shards only that may be in the next chain: of the stages
        that stay, their present ones, and of others those for the lost layers."""
        gaps = [(hop.parts.start, hop.parts.stop) for hop in before if hop.peer not in kept]
        dtype = before[0].dtype
        found = {}
        for peer, record in self._directory.members().items():
            if hop := kept.get(peer):
                shards = [_promised(shard) for shard in record.shards if _is_of(shard, talk, hop)]
            elif peer in {*talk.refused, *talk.lost, *without} or self._courier.is_quiet(peer):
                continue
            else:
                shards = [shard for shard in record.shards if _fills(shard, dtype, gaps)]
            if shards:
                found[peer] = MemberRecord(peer=peer, seq=record.seq, shards=tuple(shards))
        return found

    async def _open(
        self, talk: Talk, before: GenerationRun, run: GenerationRun, *, ahead: bool
    ) -> bool:
        """Open the new stages, and then give the others their new neighbours. Return whether the
        session continues. Raises StageRefused if a stage refuses."""
        began, done = self._host.now(), False
        assert run.continuation is not None
        fresh = set(run.peers) - run.continuation.kept
        self._runs.add(run, talk.model)
        try:
            await self._chains.open(run, talk.model, talk.request.sampling, fresh)
            if before.has_gone_on(began) and not ahead:
                return False
            await self._chains.change(run, before)
            run.pace.heard_at = self._host.now()
            self._runs.remove(before)
            self._choice.closed(before, talk.model)
            talk.run, done = run, True
            await self._chains.drop(before, set(before.peers) - set(run.peers))
            for each in before.standbys.values():
                if each.hop not in run.chain and each not in run.standbys.values():
                    await self._chains.drop(before, {each.hop.peer}, each.epoch)
            await talk.answer.begin(run.chain)
            return True
        finally:
            if not done:
                self._runs.remove(run)
                await self._chains.drop(run, fresh)


def _is_of(shard: ShardRecord, talk: Talk, hop: Hop) -> bool:
    """Return whether a hop uses the shard."""
    parts = hop.parts
    whole = (shard.embedding, shard.start, shard.stop, shard.head)
    return (
        shard.root == talk.model.root
        and shard.dtype == hop.dtype
        and whole == (parts.embedding, parts.start, parts.stop, parts.head)
    )


def _standing(run: GenerationRun) -> list[PeerId]:
    return [each.hop.peer for each in run.standbys.values()]


def _named_places(before: GenerationRun, after: Sequence[Hop]) -> int:
    """Return the last place up to which the stages' state stems from the present stages alone.

    A new stage computes its state, as a standby does that has no copies. Another standby has got it
    from the stage that it replaces.
    """
    copied = [place for place, each in before.standbys.items() if each.fed and each.hop in after]
    return min(_shared_start(before.chain, after), *(place - 1 for place in copied), len(after) - 1)


def _shared_start(before: Sequence[Hop], after: Sequence[Hop]) -> int:
    """Return how many first stages two chains have in common."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(after) - 1)


def _promised(shard: ShardRecord) -> ShardRecord:
    """Return the shard of a stage that has promised memory to the session already."""
    return replace(shard, kv_tokens_free=MAX_POSITIONS)


def _fills(shard: ShardRecord, dtype: str, gaps: list[tuple[int, int]]) -> bool:
    """Return whether a shard is for layers that were lost."""
    inside = any(start <= shard.start and shard.stop <= stop for start, stop in _joined(gaps))
    return inside and shard.dtype == dtype


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges of layers that follow each other."""
    joined: list[tuple[int, int]] = []
    for start, stop in gaps:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined
