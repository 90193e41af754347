"""Trace of a run: its records, a hash of all records, and optionally a file that stores them.

A record is (time in seconds, what, host, protocol, source, destination, size in bytes, cause). The
hash does not cover payloads, because TLS takes its random bytes from OpenSSL; the lengths of its
messages are the same in each run.
"""

import hashlib
from typing import Final, Protocol

import msgpack

from ..network.packet import Addr

Record = tuple[float, str, str, int, Addr, Addr, int, str]

SENT: Final = "sent"
RECEIVED: Final = "received"
# Drops are named by their reason: "lost", "queue", "nat", "firewall", "no-route", "cut", "mtu", …

COUNTERS: Final = ("sent", "received", "dropped", "bytes_sent", "bytes_received")
_BATCH: Final = 2048  # records that are packed and hashed together


class Writable(Protocol):
    """A file that is open for writing bytes, or a substitute for one."""

    def write(self, data: bytes, /) -> object: ...


class Trace:
    """Trace of one run. `count` is the number of records that have been hashed.

    With `keep`, all records stay in memory. If `file` is given, packed records are written to it.
    """

    def __init__(self, *, keep: bool = False, file: Writable | None = None) -> None:
        self.count = 0
        self.records: list[Record] = []
        self._keep = keep
        self._file = file
        self._hash = hashlib.blake2b(digest_size=16)
        self._batch: list[Record] = []
        self._pack = msgpack.Packer().pack  # `packb` would create a packer for each record

    def add(self, record: Record) -> None:
        """Append a record."""
        batch = self._batch
        batch.append(record)
        if len(batch) >= _BATCH:
            self._flush()

    @property
    def digest(self) -> str:
        """The hash of all records so far, as 32 hex digits."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        """Pack, hash and store the records of the current batch."""
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        # Records are packed one after the other, without an array around them: the digest must not
        # depend on when it was computed.
        packed = b"".join(map(self._pack, batch))
        self._hash.update(packed)
        self.count += len(batch)
        if self._file is not None:
            self._file.write(packed)
        if self._keep:
            self.records += batch


class CountingTrace(Trace):
    """Trace that also counts packets and bytes by host, and drops by reason.

    Records are counted in batches. `digest` and `counters` first count the records of the
    incomplete batch.
    """

    def __init__(self, *, keep: bool = False, file: Writable | None = None) -> None:
        super().__init__(keep=keep, file=file)
        self.hosts: dict[str, list[int]] = {}  # the counts of each host, in the order of COUNTERS
        self.drops: dict[str, int] = {}
        """Number of dropped packets, by reason."""

    def _flush(self) -> None:
        """Count the records of the current batch, then store them."""
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
        """Return the counts of a host so far: packets sent, received and dropped, bytes sent and
        received.
        """
        self._flush()
        return dict(zip(COUNTERS, self.hosts.get(host, (0,) * 5), strict=True))
