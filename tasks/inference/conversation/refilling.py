"""Waits until another node has loaded the layers of a stage that is lost and has no replica."""

from collections.abc import Awaitable, Callable, Collection, Iterable

import trio

from ....state.directory import Directory
from ....state.membership.record import MemberRecord, Rank
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import REFILL_CLAIM, REFILL_PATIENCE, RETURN_LOOK
from ...errors import StageLost
from ..courier import Courier
from ..generation import Awaited, GenerationRun
from .talk import Talk

Layers = tuple[int, int]
"""A range of layers: its first one, and the one after its last."""


class Refilling:
    """Keeps a request waiting while a node takes over the layers of a lost stage.

    Nodes without fixed layers move into a hole by themselves, and publish their aim before they
    load.
    """

    def __init__(self, host: Host, courier: Courier, directory: Directory) -> None:
        self._host = host
        self._courier = courier
        self._directory = directory

    async def wait(
        self,
        talk: Talk,
        run: GenerationRun,
        error: StageLost,
        retry: Callable[[bool], Awaitable[bool]],
    ) -> None:
        """Call `retry` until it returns True, which means that the request continues.

        Its argument says whether the lost peer itself is back, or has only lost its state. Returns
        also if the job must yield. Raises a StageLost if no member can load the layers, if none has
        declared it for REFILL_CLAIM seconds, or after REFILL_PATIENCE seconds.
        """
        began = hoped = self._host.now()
        told = False
        while not talk.must_yield:
            gaps = self._gaps(run, {error.peer, *talk.lost})
            hopes = _hopes(self._others(talk, error), talk.model.root, gaps)
            now = self._host.now()
            if True in hopes:
                hoped = now
            waited = now - began
            if not hopes or now >= hoped + REFILL_CLAIM or waited >= REFILL_PATIENCE:
                raise _not_filled(error, talk.model.name, waited)
            if not told:
                told = True
                await talk.answer.wait(Awaited(gaps, REFILL_PATIENCE))
            await trio.sleep(RETURN_LOOK)
            talk.refused.clear()
            peer = PeerId(error.peer)
            back = peer in self._directory.members() and self._courier.reaches(peer)
            if back:
                talk.lost.discard(peer)
            if await retry(back):
                return

    def _gaps(self, run: GenerationRun, lost: Collection[str]) -> tuple[Layers, ...]:
        """Return the layers of the stages that are lost or do not answer."""
        return tuple(
            (hop.parts.start, hop.parts.stop)
            for hop in run.chain
            if hop.peer in lost or not self._courier.reaches(hop.peer)
        )

    def _others(self, talk: Talk, error: StageLost) -> list[MemberRecord]:
        """Return the live members that may be stages of this request."""
        gone = set(talk.lost) if error.cause else {error.peer, *talk.lost}
        return [record for peer, record in self._directory.members().items() if peer not in gone]


def _hopes(members: Iterable[MemberRecord], root: str, gaps: Collection[Layers]) -> set[bool]:
    """Return whether members are about to load some of the layers (True), or might decide to do so
    (False)."""
    found = set[bool]()
    for record in members:
        aim = record.aim_at(root) if record.capacity.engine else None
        if aim is None:
            continue
        served = any(
            (shard.root, shard.start, shard.stop) == (root, aim.start, aim.stop)
            for shard in record.shards
        )
        if not served and any(aim.start < stop and start < aim.stop for start, stop in gaps):
            found.add(True)
        elif aim.rank is not Rank.FIXED:
            found.add(False)
    return found


def _not_filled(error: StageLost, model: str, waited: float) -> StageLost:
    """Return the error of a request whose lost layers no node serves after `waited` seconds."""
    still = f" (no node has loaded its layers after {waited:.0f} s)" if waited else ""
    return StageLost(
        error.peer,
        error.message + still,
        by=error.by,
        hint=f"no other node serves those layers: start one with `shoal node --model {model}`, "
        "wait until `shoal models` shows the model as complete, and run it again",
    )
