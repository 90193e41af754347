"""Replication of jobs: other nodes confirm that they store a job, and keep its input and output.

A job that only its author's node stores is lost with that node. The author therefore asks nodes
that do jobs to confirm that they have the job's entry and its input. A node that did a piece asks
in the same way for the output, before it says that the piece is done. Spec: docs/spec/jobs.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import trio
from msgspec import Meta

from ...state.views.jobs import Jobs
from ...transport.decoding import typed
from ...transport.errors import CallRefused, LinkClosed, ShoalError, Undecodable
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.message import Message, Root
from ...transport.rates import Rate, Rates
from ..inference.courier import Courier
from . import defaults
from .shelf import Shelves

KEEP = "job.keep"
_MIB = 2**20


class Keep(Message, frozen=True):
    """`job.keep`: confirm that you have a job's entry, and keep a blob for its author."""

    job: Root
    blob: Root | None = None
    size: Annotated[int, Meta(ge=0, le=defaults.INPUT_BYTES)] = 0


class Keepers:
    """Both sides of `job.keep` on one node.

    `helpers` returns the live peers that do jobs. `keeps` returns whether this node keeps blobs
    for a peer.
    """

    def __init__(
        self,
        host: Host,
        courier: Courier,
        jobs: Jobs,
        shelf: Shelves,
        *,
        helpers: Callable[[], Sequence[PeerId]],
        keeps: Callable[[PeerId], bool],
    ) -> None:
        self._host = host
        self._courier = courier
        self._jobs = jobs
        self._shelf = shelf
        self._helpers = helpers
        self._keeps = keeps
        self._rates = Rates(Rate(*defaults.KEEP_RATE))
        courier.handle(KEEP, self._on_keep)

    async def replicate(self, job: str, blob: str = "", size: int = 0, copies: int = 1) -> bool:
        """Ask other nodes to store a job and a blob of it, until `copies` of them do. Without a
        blob one is enough, because feeds spread the job.

        Returns False if none does within KEEP_TIME. Further ones get KEEP_MORE seconds after the
        first.
        """
        wanted = copies if blob else 1
        waiting = iter(self._some_helpers())
        stored = list[PeerId]()

        async def ask() -> None:
            """Ask one helper after the other until one stores it."""
            for peer in waiting:
                if await self._is_kept(peer, message):
                    stored.append(peer)
                    scope.deadline = min(scope.deadline, trio.current_time() + defaults.KEEP_MORE)
                    return

        message = Keep(job, blob or None, size).fields()
        with trio.move_on_after(defaults.KEEP_TIME) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(wanted):
                    nursery.start_soon(ask)
        return bool(stored)

    async def _is_kept(self, peer: PeerId, message: Mapping[str, object]) -> bool:
        try:
            await self._courier.meet(peer)
            await self._courier.call(peer, KEEP, message, timeout=defaults.KEEP_TIME)
        except (CallRefused, LinkClosed):
            return False
        return True

    def _some_helpers(self) -> list[PeerId]:
        """Return a few helpers, a different one first each time."""
        helpers = sorted(self._helpers())
        turn = int.from_bytes(self._host.entropy(4)) % max(1, len(helpers))
        return (helpers[turn:] + helpers[:turn])[: defaults.KEEP_ASKED]

    async def _on_keep(self, call: Call) -> Reply | Refusal:
        try:
            asked = typed(Keep, call.header)
        except Undecodable as error:
            return Refusal("bad-request", str(error))
        if not self._keeps(call.peer):
            return Refusal("not-kept", "this node does no jobs for you")
        if not self._rates.take(call.peer, self._host.now(), max(1.0, asked.size / _MIB)):
            return Refusal("busy", "this node has stored much for you lately")
        try:
            with trio.fail_after(defaults.KEEP_TIME):
                author = await self._author_of(asked.job)
                if asked.blob is not None:
                    await self._shelf.keep(asked.blob, asked.size, author)
        except trio.TooSlowError:
            return Refusal("not-stored", "the job or its blob did not arrive in time")
        except ShoalError as error:
            return Refusal("not-stored", error.message)
        return Reply()

    async def _author_of(self, job: str) -> PeerId:
        """Wait until a job's entry is here, and return its author."""
        while (found := self._jobs.get(job)) is None or found.job is None:  # noqa: ASYNC110
            await trio.sleep(defaults.KEEP_LOOK)
        return found.job.author
