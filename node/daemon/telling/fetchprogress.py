"""Formats the progress of a node's fetches as lines of text. Performs no I/O."""

from ....tasks.serving.interface import ServingStatus
from ....transport.host.seam import Host
from ... import defaults

MIB = 2**20


class FetchProgress:
    """Produces a line about the progress of a fetch, at most one every PROGRESS_PAUSE seconds and
    only if bytes have arrived."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._said: tuple[float, int] | None = None  # time of the last line, and bytes done then

    def line(self, status: ServingStatus) -> str | None:
        """Return the line to print for the current status, or None if no line is due."""
        done, total, now = status.done_bytes, status.total_bytes, self._host.now()
        if status.phase != "fetching" or not total:
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
