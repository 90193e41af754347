"""The trace of a run: records, a running hash, and optionally a file.

A record is (time in seconds, what, host, protocol, source, destination, bytes, cause). The hash
covers every record but no payload: TLS bytes come from OpenSSL's own randomness, but their lengths
do not.
"""

import hashlib
from typing import Final, Protocol

import msgpack

from ..network.packet import Addr

Record = tuple[float, str, str, int, Addr, Addr, int, str]

SENT: Final = "sent"
RECEIVED: Final = "received"
# Drops are named by their reason: "lost", "queue", "nat", "firewall", "no-route", "cut", "mtu", …

_BATCH: Final = 2048


class Writable(Protocol):
    """What a trace needs of a file that is open for writing bytes."""

    def write(self, data: bytes, /) -> object: ...


class Trace:
    """Records of one run. `keep` stores them all in memory; `file` gets them packed."""

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
        """Return the hash of all records so far, 32 hex digits."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
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
