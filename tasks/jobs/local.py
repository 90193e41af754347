"""What jobs need to know of this node: its state and peer id, and when it does jobs for whom."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ...state.service import State
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ..inference.generation import Turn
from . import defaults


@dataclass(frozen=True, slots=True)
class JobNode:
    """The node that submits these jobs and does jobs of other nodes. `State.run` must be running.

    `guard` surrounds all code that an entry of another node can trigger.
    """

    host: Host
    state: State
    peer: PeerId
    guard: Guard = field(default_factory=Guard)


@dataclass(frozen=True, slots=True)
class WorkTerms:
    """Conditions under which this node does jobs."""

    turn: Turn
    """Tells when jobs may compute. At other times, interactive requests have priority."""
    ready: Callable[[], bool]
    """Returns whether the node does any jobs now."""
    accepts: Callable[[PeerId], bool] = lambda author: True
    """Returns whether the node does jobs of this author."""


class IdleTime:
    """`Turn` of jobs: the time in which `waited_for` returns 0, the number of interactive
    requests."""

    def __init__(self, waited_for: Callable[[], int]) -> None:
        self._waited_for = waited_for

    def is_over(self) -> bool:
        """Return whether there are interactive requests."""
        return self._waited_for() > 0

    async def come(self) -> None:
        """Wait until there are no interactive requests."""
        while self.is_over():  # noqa: ASYNC110  two counters of other parts, without events
            await trio.sleep(defaults.PAUSE)
