"""Tasks that handle peers, started by the parts of a service while it runs."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from .guard import Guard


class PeerTasks:
    """Starter of guarded tasks. They run in the nursery of a service, while the service runs.

    The parts of the service are created before it runs, and share this object.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._nursery: trio.Nursery | None = None

    @property
    def running(self) -> bool:
        """Whether the service runs, so that tasks can be started."""
        return self._nursery is not None

    @contextmanager
    def run_in(self, nursery: trio.Nursery) -> Iterator[None]:
        """Open a context in which tasks are started in `nursery`."""
        self._nursery = nursery
        try:
            yield
        finally:
            self._nursery = None

    def start(
        self,
        subject: object,
        function: Callable[..., Awaitable[object]],
        *args: object,
        end: Callable[[], object] | None = None,
    ) -> bool:
        """Start a task, as `Guard.start` does. If the service does not run, return False."""
        if self._nursery is None:
            return False
        self._guard.start(self._nursery, subject, function, *args, end=end)
        return True
