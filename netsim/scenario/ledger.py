"""A trace that also counts: packets and bytes by host, drops by reason."""

from ..trace.trace import RECEIVED, SENT, Trace, Writable

COUNTERS = ("sent", "received", "dropped", "bytes_sent", "bytes_received")


class Ledger(Trace):
    """Records of a run, and their sums. Counting happens one batch at a time."""

    def __init__(self, *, keep: bool = False, file: Writable | None = None) -> None:
        super().__init__(keep=keep, file=file)
        self.hosts: dict[str, list[int]] = {}  # by host, in the order of COUNTERS
        self.drops: dict[str, int] = {}

    def _flush(self) -> None:
        hosts, drops = self.hosts, self.drops
        for record in self._batch:
            what, host = record[1], record[2]
            counts = hosts.get(host)
            if counts is None:
                counts = hosts[host] = [0, 0, 0, 0, 0]
            if what == SENT:
                counts[0] += 1
                counts[3] += record[6]
            elif what == RECEIVED:
                counts[1] += 1
                counts[4] += record[6]
            else:
                counts[2] += 1
                drops[what] = drops.get(what, 0) + 1
        super()._flush()

    def counters(self, host: str) -> dict[str, int]:
        """Return the counters of a host so far: packets and bytes sent, received and lost."""
        self._flush()
        return dict(zip(COUNTERS, self.hosts.get(host, (0,) * 5), strict=True))
