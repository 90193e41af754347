"""persistence: contacts and own records over a restart, and damaged files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from shoal.dht import defaults
from shoal.dht.kademlia.table import Table
from shoal.dht.persistence import DhtFiles, Persistence, Remembered
from shoal.dht.publishing.own import OwnRecords
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import node_key
from shoal.dht.records.record import PeerBody, seal_record
from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity

ME, OTHER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))
SEALED = seal_record(ME, PeerBody(ME.peer, ()), made=1_700_000_000_000, ttl=600)


@pytest.mark.trio
async def test_contacts_and_records_survive_a_restart(tmp_path: Path) -> None:
    dht_files = DhtFiles(RealHost(), tmp_path / "dht")
    assert await dht_files.load() == Remembered()
    table = Table(node_key(ME.peer), lambda size: bytes(size))
    contact = Contact(OTHER.peer, [Address("1.2.3.4", 4001, OTHER.peer)])
    table.answered(contact, 1.0)
    await dht_files.save_contacts(table.dump())
    await dht_files.save_records([(SEALED, True), (SEALED, False)])
    again = await DhtFiles(RealHost(), tmp_path / "dht").load()
    assert again.contacts == (contact,)
    assert again.contacts[0].addresses == contact.addresses
    assert [(record.sealed, lasting) for record, lasting in again.records] == [
        (SEALED, True),
        (SEALED, False),
    ]


@pytest.mark.trio
@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", msgpack.packb(7), msgpack.packb([2, [SEALED, True]])],
)
async def test_damaged_files_are_ignored(tmp_path: Path, data: bytes) -> None:
    for name in ("contacts", "records"):
        (tmp_path / name).write_bytes(data)
    assert await DhtFiles(RealHost(), tmp_path).load() == Remembered()


@pytest.mark.trio
async def test_a_damaged_record_does_not_affect_others(tmp_path: Path) -> None:
    bad = SEALED[:-1] + b"!"
    listed = [1, [bad, True], 3, [SEALED], [7, True], [SEALED, True]]
    (tmp_path / "records").write_bytes(msgpack.packb(listed))
    found = await DhtFiles(RealHost(), tmp_path).load()
    assert [record.sealed for record, _ in found.records] == [SEALED]


@pytest.mark.trio
async def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await DhtFiles(RealHost(), tmp_path).save_records([(SEALED, True)])
    monkeypatch.setattr(defaults, "DHT_FILE_BYTES", 100)
    assert await DhtFiles(RealHost(), tmp_path).load() == Remembered()


@pytest.mark.trio
async def test_a_disk_error_is_raised(tmp_path: Path) -> None:
    (tmp_path / "dht").write_bytes(b"no folder")
    with pytest.raises(OSError, match="File exists"):
        await DhtFiles(RealHost(), tmp_path / "dht").save_records([])


@pytest.mark.trio
async def test_the_files_are_read_and_written_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening ten thousand records takes a second, which must not block the event loop."""
    host, work = RealHost(), []
    real = host.offload

    async def offload(function: Any, *args: Any) -> Any:
        work.append(function.__name__)
        return await real(function, *args)

    monkeypatch.setattr(host, "offload", offload)
    await DhtFiles(host, tmp_path).save_records([(SEALED, True)])
    await DhtFiles(host, tmp_path).load()
    assert work == ["_write", "_load"]


@pytest.mark.trio
async def test_unchanged_contacts_are_not_written_again(tmp_path: Path) -> None:
    written: list[str] = []

    class Watched(DhtFiles):
        async def save_contacts(self, dumped: bytes) -> None:
            written.append("contacts")
            await super().save_contacts(dumped)

        async def save_records(self, records: Sequence[tuple[bytes, bool]]) -> None:
            written.append("records")
            await super().save_records(records)

    host = RealHost()
    table = Table(node_key(ME.peer), lambda size: bytes(size))
    contact = Contact(OTHER.peer, [Address("1.2.3.4", 4001, OTHER.peer)])
    table.answered(contact, 1.0)
    records = OwnRecords(ME)
    lasting = Persistence(host, Watched(host, tmp_path), table, records, lambda error: None)
    await lasting.save()
    await lasting.save()
    assert written.count("contacts") == 1
    table.answered(Contact(OTHER.peer, [Address("1.2.3.5", 4001, OTHER.peer)]), 2.0)
    await lasting.save()
    assert written.count("contacts") == 2
