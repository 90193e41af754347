"""A second copy of each checkpoint, on the node that would continue the fine-tuning.

The trainer gives each checkpoint to the first other live worker on the job's ring, which fetches
the parts that it lacks and checks all values. The author may also ask the trainer to stop, so that
another node continues. Spec: docs/spec/moving.md.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import trio
from msgspec import Meta

from ....dht.errors import NotEnoughDisk
from ....state.defaults import CLAIM_SAVED_BYTES
from ....state.views.jobs import Job, Jobs
from ....transport.decoding import typed
from ....transport.errors import CallRefused, LinkClosed, ShoalError, Undecodable
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.link.calls import Call, Refusal, Reply
from ....transport.message import Message, Root
from ....transport.rates import Rate, RateLimiter, Rates
from ...inference.courier import Courier
from ...jobs.errors import BadOutcome
from ...jobs.results import SavedWork
from ..trainer.errors import TuningError
from . import defaults
from .checkpoints import Checkpoints

STAND_BY, MOVE = "job.stand_by", "job.move"


class StandBy(Message, frozen=True):
    """`job.stand_by`: fetch and keep the checkpoint `saved` of a job that the caller works on."""

    job: Root
    saved: Annotated[bytes, Meta(min_length=CLAIM_SAVED_BYTES, max_length=CLAIM_SAVED_BYTES)]


class Move(Message, frozen=True):
    """`job.move`: stop working on a job of the caller, so that another node continues it."""

    job: Root


class TrainerStandby:
    """Both sides of `job.stand_by` on one node.

    `heirs` returns the live workers that would continue a job, this node excluded. `stores_for`
    returns whether this node stores checkpoints for a peer.
    """

    def __init__(
        self,
        host: Host,
        courier: Courier,
        jobs: Jobs,
        checkpoints: Checkpoints,
        *,
        heirs: Callable[[Job], Sequence[PeerId]],
        stores_for: Callable[[PeerId], bool],
    ) -> None:
        self._host = host
        self._courier = courier
        self._jobs = jobs
        self._checkpoints = checkpoints
        self._heirs = heirs
        self._stores_for = stores_for
        self._rates = Rates(Rate(*defaults.STAND_BY_RATE))
        # Not in `_rates`: only the trainers of jobs may use up the total.
        self._total = RateLimiter(Rate(*defaults.STAND_BY_TOTAL), host.now())
        self._taking: set[str] = set()
        courier.handle(STAND_BY, self._on_stand_by)

    async def replicate(self, job: Job, work: SavedWork) -> bool:
        """Give a checkpoint to the first of the heirs that takes it.

        Return whether one does, or there is none.
        """
        message = StandBy(job.id, work.packed()).fields()
        heirs = self._heirs(job)[:2]
        for peer in heirs:
            try:
                await self._courier.meet(peer)
                await self._courier.call(peer, STAND_BY, message, timeout=defaults.STAND_BY_TIME)
            except (CallRefused, LinkClosed):
                continue
            return True
        return not heirs

    async def _on_stand_by(self, call: Call) -> Reply | Refusal:
        try:
            asked = typed(StandBy, call.header)
            work = SavedWork.read(asked.saved, defaults.MANIFEST_BYTES)
        except (Undecodable, BadOutcome) as error:
            return Refusal("bad-request", str(error))
        if not self._stores_for(call.peer):
            return Refusal("no-replica", "this node does no jobs for you")
        full = len(self._checkpoints.jobs) >= defaults.HELD
        if full and asked.job not in self._checkpoints.jobs:
            return Refusal("busy", f"this node has checkpoints of {defaults.HELD} fine-tunings")
        if asked.job in self._taking or not self._rates.take(call.peer, self._host.now()):
            return Refusal("busy", "this node has just taken checkpoints of yours")
        self._taking.add(asked.job)
        try:
            with trio.fail_after(defaults.STAND_BY_TIME):
                await self._take(call.peer, asked.job, work)
        except trio.TooSlowError:
            return Refusal("not-stored", "the checkpoint did not arrive in time")
        except NotEnoughDisk as error:
            return Refusal("full", error.message)
        except ShoalError as error:
            return Refusal(getattr(error, "code", None) or "not-stored", error.message)
        finally:
            self._taking.discard(asked.job)
        return Reply()

    async def _take(self, peer: PeerId, job: str, work: SavedWork) -> None:
        """Fetch, check and keep a checkpoint.

        Raises TuningError `not-claimed` if the peer does not work on the job, and `busy` if this
        node has taken many checkpoints.
        """
        with trio.move_on_after(defaults.CLAIM_TIME):
            while not self._is_trainer(peer, job):  # noqa: ASYNC110
                await trio.sleep(defaults.CLAIM_TIME / 20)
        standing = self._jobs.get(job)
        if standing is None or standing.job is None or not self._is_trainer(peer, job):
            raise TuningError("not-claimed", "you do not work on this job")
        if not self._total.take(self._host.now()):
            raise TuningError("busy", "this node has just taken many checkpoints")
        await self._checkpoints.take(standing.job, work)

    def _is_trainer(self, peer: PeerId, job: str) -> bool:
        """Return whether a peer has the claim on a fine-tuning that counts.

        Any peer may claim any job, and each claimant could replace the checkpoint of the one that
        works.
        """
        standing = self._jobs.get(job)
        if standing is None or standing.job is None or standing.job.kind != defaults.KIND:
            return False
        return standing.claim is not None and standing.claim.claimant == peer


class MoveRequests:
    """Both sides of `job.move` on one node.

    `stop` ends this node's work on a job, and returns False if there is none.
    """

    def __init__(self, courier: Courier, jobs: Jobs, stop: Callable[[str], bool]) -> None:
        self._courier = courier
        self._jobs = jobs
        self._stop = stop
        courier.handle(MOVE, self._on_move)

    async def ask_to_move(self, job: str, peer: PeerId) -> None:
        """Ask the trainer of one of this node's fine-tunings to stop.

        Raises TuningError `not-moved` if it refuses or does not answer.
        """
        try:
            await self._courier.meet(peer)
            await self._courier.call(peer, MOVE, Move(job).fields(), timeout=defaults.CALL_TIME)
        except (CallRefused, LinkClosed) as error:
            raise TuningError(
                "not-moved",
                f"the trainer {peer} did not stop: {error.message}",
                hint="if it is dead, another node continues by itself within half a minute",
            ) from None

    def _on_move(self, call: Call) -> Reply | Refusal:
        try:
            asked = typed(Move, call.header)
        except Undecodable as error:
            return Refusal("bad-request", str(error))
        standing = self._jobs.get(asked.job)
        if standing is None or standing.job is None or standing.job.author != call.peer:
            return Refusal("not-yours", "you are not the author of such a job")
        if not self._stop(asked.job):
            return Refusal("not-running", "this node does not work on the job")
        return Reply()
