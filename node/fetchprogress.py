"""How far a node is with what it fetches to serve, as lines on its own terminal. No I/O."""

from collections.abc import Mapping
from typing import Any

from ..transport.host import Host
from . import defaults

MIB = 2**20


class FetchProgress:
    """A line now and then, while there is news."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._said: tuple[float, int] | None = None  # when, and of how many bytes

    def line(self, status: Mapping[str, Any]) -> str | None:
        """What to say now of `Serving.status`; None: nothing."""
        done, total, now = status["done_bytes"], status["total_bytes"], self._host.now()
        if status["phase"] != "fetching" or not total:
            self._said = None
            return None
        if self._said is None:
            self._said = now, done
            return None
        at, before = self._said
        if done == before or now - at < defaults.PROGRESS_PAUSE:
            return None
        self._said = now, done
        rate = max(done - before, 0) / (now - at) / MIB
        return (
            f"{100 * done // total} % fetched: {done / MIB:.1f} of {total / MIB:.1f} MiB, "
            f"{rate:.1f} MiB/s"
        )
