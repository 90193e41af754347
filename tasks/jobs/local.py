"""What jobs need of this node: its state and its key, and when it computes for which authors."""

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
class LocalNode:
    """The node whose jobs these are, and which does the jobs of others. `State.run` must be
    running. `guard` stands around everything that another node's fact can trigger."""

    host: Host
    state: State
    peer: PeerId
    guard: Guard = field(default_factory=Guard)


@dataclass(frozen=True, slots=True)
class Terms:
    """When this node does jobs, and for which authors."""

    turn: Turn
    """When jobs may compute; between their turns, interactive requests do."""
    ready: Callable[[], bool]
    """Whether the node does jobs at all now."""
    accepts: Callable[[PeerId], bool] = lambda author: True
    """Whether the node does jobs of this author."""


class IdleTime:
    """`Turn` of jobs: the time without interactive requests, whose number `waited_for` returns."""

    def __init__(self, waited_for: Callable[[], int]) -> None:
        self._waited_for = waited_for

    def is_over(self) -> bool:
        return self._waited_for() > 0

    async def come(self) -> None:
        while self.is_over():  # noqa: ASYNC110  two counters of other parts, without events
            await trio.sleep(defaults.PAUSE)
