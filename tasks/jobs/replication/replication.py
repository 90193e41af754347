"""Replication of jobs: other nodes confirm that they store a job, and keep its input and output.

A job that only its author's node stores is lost with that node. The author therefore asks nodes
that do jobs to confirm that they have the job's entry and its input. A node that did a piece asks
in the same way for the output, before it says that the piece is done. Spec: docs/spec/jobs.md.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import trio
from msgspec import Meta

from ....dht.errors import NotEnoughDisk
from ....state.views.jobs import Job, Jobs
from ....transport.decoding import typed
from ....transport.errors import CallRefused, LinkClosed, ShoalError, Undecodable
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.link.calls import Call, Refusal, Reply
from ....transport.message import Message, Root
from ....transport.rates import Rate, RateLimiter, Rates
from ...inference.courier import Courier
from .. import defaults
from ..errors import BadSpec
from ..shelf import Shelves
from ..spec import root_of

REPLICATE = "job.replicate"
_MIB = 2**20


class Replicate(Message, frozen=True):
    """`job.replicate`: confirm that you have a job's entry, and keep a blob for its author."""

    job: Root
    blob: Root | None = None
    size: Annotated[int, Meta(ge=0, le=defaults.INPUT_BYTES)] = 0


@dataclass(frozen=True, slots=True)
class ReplicationRefusal:
    """Why a peer does not store a job. `code` and `message` may come from that peer."""

    peer: PeerId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ReplicationAnswer:
    """Whether a peer stores a job, and the last refusal, if there was one."""

    is_stored: bool
    refusal: ReplicationRefusal | None


@dataclass(frozen=True, slots=True)
class ReplicationTerms:
    """Conditions under which a node keeps blobs for others, and the nodes that may keep its own."""

    helpers: Callable[[], Sequence[PeerId]]
    """Returns the live peers that do jobs."""
    is_alone: Callable[[], bool]
    """Returns whether this node knows no other live member of its swarm."""
    serving: Callable[[str], Container[PeerId]]
    """Returns the live peers that serve a part of the model with a root."""
    keeps: Callable[[PeerId], bool]
    """Returns whether this node keeps blobs for a peer."""
    works_for: Callable[[str], bool]
    """Returns whether this node itself uses the model with a root."""


class JobReplication:
    """Both sides of `job.replicate` on one node."""

    def __init__(
        self,
        host: Host,
        courier: Courier,
        jobs: Jobs,
        shelf: Shelves,
        terms: ReplicationTerms,
    ) -> None:
        self._host = host
        self._courier = courier
        self._jobs = jobs
        self._shelf = shelf
        self._terms = terms
        self.rates = Rates(Rate(*defaults.REPLICATE_RATE))
        """How much this node stores for each peer."""
        # Not in `rates`: only callers that have a part in a job may use up the total.
        self._total = RateLimiter(Rate(*defaults.REPLICATE_TOTAL), host.now())
        courier.handle(REPLICATE, self._on_replicate)

    async def replicate(self, job: str, blob: str = "", size: int = 0) -> bool:
        """Ask other nodes to store a job and a blob of it. Return whether one does."""
        return (await self.attempt(job, blob, size)).is_stored

    async def attempt(
        self, job: str, blob: str = "", size: int = 0, copies: int = 1
    ) -> ReplicationAnswer:
        """Ask other nodes to store a job and a blob of it, until `copies` of them do. Without a
        blob one is enough, because feeds spread the job.

        This takes REPLICATE_TIME at most. Further ones get REPLICATE_MORE seconds after the first.
        """
        wanted = copies if blob else 1
        waiting = iter(self._some_helpers(job))
        stored, refusals = list[PeerId](), list[ReplicationRefusal]()

        async def ask() -> None:
            """Ask one helper after the other until one stores it."""
            for peer in waiting:
                refusal = await self._refused(peer, message)
                if refusal is not None:
                    refusals.append(refusal)
                else:
                    stored.append(peer)
                    scope.deadline = min(
                        scope.deadline, trio.current_time() + defaults.REPLICATE_MORE
                    )
                    return

        message = Replicate(job, blob or None, size).fields()
        with trio.move_on_after(defaults.REPLICATE_TIME) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(wanted):
                    nursery.start_soon(ask)
        return ReplicationAnswer(bool(stored), refusals[-1] if refusals else None)

    async def _refused(
        self, peer: PeerId, message: Mapping[str, object]
    ) -> ReplicationRefusal | None:
        """Ask a peer. Return its refusal, or None if it stores what was asked."""
        try:
            await self._courier.meet(peer)
            await self._courier.call(peer, REPLICATE, message, timeout=defaults.REPLICATE_TIME)
        except (CallRefused, LinkClosed) as error:
            return ReplicationRefusal(peer, error.code, error.message)
        return None

    async def wait_for_helper(self) -> None:
        """Wait for a short time for the first peer that does jobs. A node that has just joined
        knows the other members before it knows what they do, and they say that they do jobs only
        once they serve a model."""
        with trio.move_on_after(defaults.REPLICATE_FIND):
            while not self._terms.helpers() and not self._terms.is_alone():  # noqa: ASYNC110
                await trio.sleep(defaults.REPLICATE_LOOK)

    def helpers(self) -> Sequence[PeerId]:
        """Return the live peers that do jobs."""
        return self._terms.helpers()

    def _some_helpers(self, job: str) -> list[PeerId]:
        """Return a few helpers, a different one first each time. The ones that serve the
        model of a job come first, because others may refuse to keep its blobs."""
        helpers = sorted(self._terms.helpers())
        turn = int.from_bytes(self._host.entropy(4)) % max(1, len(helpers))
        helpers = helpers[turn:] + helpers[:turn]
        standing = self._jobs.get(job)
        if standing is not None and standing.job is not None:
            with suppress(BadSpec):
                serving = self._terms.serving(root_of(standing.job.spec))
                helpers.sort(key=lambda peer: peer not in serving)
        return helpers[: defaults.REPLICATE_ASKED]

    async def _on_replicate(self, call: Call) -> Reply | Refusal:
        try:
            asked = typed(Replicate, call.header)
        except Undecodable as error:
            return Refusal("bad-request", str(error))
        if not self._terms.keeps(call.peer):
            return Refusal("no-replica", "this node does no jobs for you")
        if not self.rates.take(call.peer, self._host.now(), max(1.0, asked.size / _MIB)):
            return Refusal("busy", "this node has stored much for you lately")
        try:
            with trio.fail_after(defaults.REPLICATE_TIME):
                job = await self._job(asked.job)
                refusal = await self._refusal(call.peer, job, asked)
                if refusal is None and asked.blob is not None:
                    refusal = await self._store(asked.blob, asked.size, job.author)
        except trio.TooSlowError:
            return Refusal("not-stored", "the job or its blob did not arrive in time")
        except NotEnoughDisk as error:
            return Refusal("full", error.message)
        except ShoalError as error:
            return Refusal("not-stored", error.message)
        return refusal or Reply()

    async def _job(self, job: str) -> Job:
        """Wait until a job's entry is here, and return it."""
        while (found := self._jobs.get(job)) is None or found.job is None:  # noqa: ASYNC110
            await trio.sleep(defaults.REPLICATE_LOOK)
        return found.job

    async def _refusal(self, peer: PeerId, job: Job, asked: Replicate) -> Refusal | None:
        """Return why this node does not keep a blob of a job for a peer, or None if it does."""
        if peer != job.author:
            if asked.size > defaults.RESULT_BYTES:
                return Refusal("not-yours", "you are not the author of the job")
            with trio.move_on_after(defaults.REPLICATE_CLAIM_TIME):
                while not self._has_claim(peer, job):  # noqa: ASYNC110
                    await trio.sleep(defaults.REPLICATE_LOOK)
            if not self._has_claim(peer, job):
                return Refusal("not-yours", "you are neither the author nor work on the job")
        if asked.blob is None or self._works_for(job):
            return None
        return Refusal("no-replica", "this node does nothing for the model of the job")

    def _has_claim(self, peer: PeerId, job: Job) -> bool:
        """Return whether a peer has a claim on a job that its author does not refuse."""
        claim = self._jobs.claim_by(peer, job.id)
        return claim is not None and not claim.left and peer not in job.refused

    def _works_for(self, job: Job) -> bool:
        """Return whether this node works for the model of a job."""
        try:
            return self._terms.works_for(root_of(job.spec))
        except BadSpec:
            return False

    async def _store(self, blob: str, size: int, author: PeerId) -> Refusal | None:
        """Fetch and keep a blob. Returns a refusal if this node has stored much for all peers
        together.

        Raises the errors of `Shelves.keep`.
        """
        count = max(1.0, size / _MIB)
        if not self._total.take(self._host.now(), count):
            return Refusal("busy", "this node has stored much for other nodes lately")
        try:
            await self._shelf.keep(blob, size, author)
        except BaseException:
            self._total.give(self._host.now(), count)
            raise
        return None
