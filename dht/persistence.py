"""Persistence of the DHT over a restart: known contacts, and own records.

There are two files, each written whole by `Files.write`. `contacts` is the output of `Table.dump`.
`records` is msgpack: the version, then [sealed bytes, lasting] for each own record. Data that
cannot be decoded is ignored.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack
import trio

from ..transport.decoding import decode
from ..transport.errors import FileTooLarge, Undecodable
from ..transport.host.seam import Host
from . import defaults
from .errors import BadRecord
from .kademlia.table import Table
from .publishing.own import OwnRecords
from .records.contact import Contact
from .records.record import Record, open_record

_VERSION: Final = 1
_ITEMS: Final = defaults.DHT_FILE_BYTES // 32  # msgpack items: a record is three, of over 100 bytes

Trouble = Callable[[OSError | None], None]
"""Called with the error after a disk error, and with None after each successful write."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """State of the last run: the contacts, and the own records.

    The contacts that answered last come first. Each record is paired with whether it is lasting,
    that is, stays true after the process ends.
    """

    contacts: tuple[Contact, ...] = ()
    records: tuple[tuple[Record, bool], ...] = ()


class DhtFiles:
    """The two files in `folder`.

    The methods run blocking work in threads, and raise disk errors.
    """

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._folder = folder

    async def load(self) -> Remembered:
        """Load what the last run saved. Raises OSError if a file cannot be read."""
        return await self._host.offload(self._load)

    async def save_contacts(self, dumped: bytes) -> None:
        """Write the contacts, as encoded by the table.

        Raises OSError if the file cannot be written.
        """
        await self._host.offload(self._write, "contacts", dumped)

    async def save_records(self, records: Sequence[tuple[bytes, bool]]) -> None:
        """Write own records: sealed bytes, and whether each is lasting.

        Raises OSError if the file cannot be written.
        """
        packed = msgpack.packb([_VERSION, *records])
        await self._host.offload(self._write, "records", packed)

    def _load(self) -> Remembered:
        """Read and decode both files. Blocking."""
        contacts = Table.load(self._read("contacts"))
        return Remembered(tuple(contacts), tuple(opened(self._read("records"))))

    def _read(self, name: str) -> bytes:
        """Return the bytes of a file, b"" if it is missing or too large. Blocking."""
        try:
            return self._host.files.read(self._folder / name, limit=defaults.DHT_FILE_BYTES)
        except (FileNotFoundError, FileTooLarge):
            return b""

    def _write(self, name: str, data: bytes) -> None:
        """Write a file, and create the folder if needed. Blocking."""
        self._host.files.make_folder(self._folder, mode=0o700)
        self._host.files.write(self._folder / name, data)


class Persistence:
    """Task that saves the contacts and the own records while a node runs.

    Disk errors are reported to `trouble`, and do not stop the node.
    """

    def __init__(
        self, host: Host, dht_files: DhtFiles, table: Table, records: OwnRecords, trouble: Trouble
    ) -> None:
        self._host = host
        self._dht_files = dht_files
        self._table = table
        self._records = records
        self._trouble = trouble
        self._known: frozenset[bytes] = frozenset()  # encoded contacts in the file
        self._written = 0  # the value of `OwnRecords.changed` when the records were last written

    async def load(self) -> Sequence[Contact]:
        """Restore the own records of the last run, and return its contacts."""
        try:
            found = await self._dht_files.load()
        except OSError as error:
            self._trouble(error)
            return ()
        self._records.restore(found.records, now=self._host.now(), wall=self._host.wall())
        return found.contacts

    async def run(self) -> None:
        """Save changes until cancelled."""
        due = self._host.now()
        while True:
            if self._records.changed != self._written:
                await self._write(self._save_records)
            # The table may be empty after a network failure. The saved contacts must then stay.
            if self._host.now() >= due and len(self._table):
                due = self._host.now() + defaults.CONTACTS_PAUSE
                await self._write(self._save_contacts)
            await trio.sleep(defaults.RECORDS_PAUSE)

    async def save(self) -> None:
        """Save everything now."""
        await self._write(self._save_records)
        if len(self._table):
            await self._write(self._save_contacts)

    async def _save_records(self) -> None:
        """Write the own records."""
        changed = self._records.changed
        await self._dht_files.save_records(self._records.dump())
        self._written = changed

    async def _save_contacts(self) -> None:
        """Write the contacts if they have changed."""
        known = frozenset(contact.packed for contact in self._table.contacts())
        if known != self._known:
            await self._dht_files.save_contacts(self._table.dump())
            self._known = known

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        """Call `write`, and report its success or its disk error."""
        try:
            await write()
        except OSError as error:
            self._trouble(error)
        else:
            self._trouble(None)


def opened(packed: bytes) -> list[tuple[Record, bool]]:
    """Decode and verify the saved records. Invalid ones are left out."""
    try:
        version, *listed = decode(packed, limit=defaults.DHT_FILE_BYTES, items=_ITEMS)
    except (Undecodable, ValueError, TypeError):
        return []
    if version != _VERSION:
        return []
    found = []
    for item in listed:
        try:
            sealed, lasting = item
            found.append((open_record(sealed), lasting is True))
        except (BadRecord, TypeError, ValueError):  # damaged, or written by a later version
            continue
    return found
