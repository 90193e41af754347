"""Records, their running hash, and what it covers."""

from io import BytesIO
from typing import Any

from shoal.netsim.network.packet import UDP
from shoal.netsim.trace.file import read
from shoal.netsim.trace.trace import Record, Trace

BASE: Record = (1.5, "sent", "alice", UDP, ("10.0.0.1", 7), ("10.0.0.2", 9), 60, "alice:task")


def digest(*records: Record) -> str:
    trace = Trace()
    for record in records:
        trace.add(record)
    return trace.digest


def test_every_field_counts() -> None:
    changes: list[Any] = [
        1.6, "lost", "bob", 6, ("10.0.0.1", 8), ("10.0.0.3", 9), 61, "alice:other",
    ]  # fmt: skip
    digests = {digest(BASE)}
    for index, value in enumerate(changes):
        fields: Any = list(BASE)
        fields[index] = value
        digests.add(digest(tuple(fields)))
    assert len(digests) == len(BASE) + 1
    assert digest(BASE, BASE) not in digests


def test_order_counts_and_asking_does_not() -> None:
    other: Record = (1.6, *BASE[1:])
    assert digest(BASE, other) != digest(other, BASE)
    trace = Trace()
    for record in (BASE, other):
        trace.add(record)
        assert len(trace.digest) == 32
    assert trace.digest == digest(BASE, other)


def test_kept_and_written_records_are_those_added() -> None:
    file = BytesIO()
    trace = Trace(keep=True, file=file)
    records = [(float(number), *BASE[1:]) for number in range(3000)]
    for record in records:
        trace.add(record)
    assert trace.digest and trace.count == 3000
    assert trace.records == records
    file.seek(0)
    assert list(read(file)) == records


def test_without_keeping_nothing_is_kept() -> None:
    trace = Trace()
    for _ in range(5000):
        trace.add(BASE)
    assert trace.digest and trace.count == 5000 and not trace.records
