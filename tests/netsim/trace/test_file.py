"""Reading traces, and finding the first difference of two."""

from io import BytesIO
from typing import Any

import pytest

from shoal.netsim.errors import BadTrace
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.trace.file import describe, first_difference, read
from shoal.netsim.trace.trace import Record, Trace

A, B = ("10.0.0.1", 7), ("fd00::2", 9)


def record(number: int, **changed: Any) -> Record:
    fields: dict[str, Any] = {"time": number / 10, "what": "sent", "host": "h", "proto": UDP}
    fields |= {"src": A, "dst": B, "size": 60, "cause": "h:task"}
    return tuple({**fields, **changed}.values())


def written(*records: Record) -> BytesIO:
    file = BytesIO()
    trace = Trace(file=file)
    for item in records:
        trace.add(item)
    assert trace.digest
    file.seek(0)
    return file


SAME = [record(number) for number in range(20)]


def test_what_was_written_is_read() -> None:
    many = [record(number) for number in range(5000)]
    assert list(read(written(*many))) == many
    assert list(read(BytesIO())) == []


def test_a_file_that_was_cut_off() -> None:
    data = written(*SAME).getvalue()
    whole = len(data) // 20
    with pytest.raises(BadTrace, match="run7 is truncated: it ends 5 bytes into record 3\nhint: "):
        list(read(BytesIO(data[: 3 * whole + 5]), "run7"))
    assert len(list(read(BytesIO(data[: 3 * whole])))) == 3


@pytest.mark.parametrize(
    "data", [b"\xc1", b"hello", b"\x93\x01\x02\x03", b"\x98" + b"\x01" * 8, b"\xdf\xff\xff\xff\xff"]
)
def test_files_that_are_not_traces(data: bytes) -> None:
    with pytest.raises(BadTrace, match="trace"):
        list(read(BytesIO(data)))


def test_equal_traces() -> None:
    assert first_difference(written(*SAME), written(*SAME)) is None


def test_the_first_record_that_differs() -> None:
    other = [*SAME]
    other[12] = record(12, proto=TCP, cause="h:other")
    other[15] = record(15, size=1)
    found = first_difference(written(*SAME), written(*other), context=3)
    assert found is not None
    assert (found.index, found.a, found.b) == (12, SAME[12], other[12])
    assert found.before == SAME[9:12]
    assert found.after_a == SAME[13:16] and found.after_b == other[13:16]
    assert found.causes == ("h:task", "h:other")
    lines = list(found.lines("one", "two"))
    assert lines[0] == "record 12 differs"
    assert lines[4] == f"-  {describe(SAME[12])}" and lines[8] == f"+  {describe(other[12])}"
    assert lines[-2:] == ["caused in one by h:task", "caused in two by h:other"]


def test_one_is_longer() -> None:
    found = first_difference(written(*SAME[:5]), written(*SAME))
    assert found is not None
    assert (found.index, found.a, found.b) == (5, None, SAME[5])
    lines = list(found.lines())
    assert "-  (end of a)" in lines and "caused in a by its end" in lines
    assert found.causes == ("", "h:task")


def test_the_cause_of_a_record_without_a_task() -> None:
    """For a segment that an acknowledgement released, the task is found in the opposite
    direction.
    """
    led = record(3, src=B, dst=A, cause="g:writer")
    other_flow = record(4, src=("10.0.0.9", 1), cause="h:other")
    same = [led, other_flow, record(5, cause="")]
    found = first_difference(
        written(*same, record(6, cause="")),
        written(*same, record(6, src=("10.7.7.7", 1), cause="")),
    )
    assert found is not None
    assert found.causes == ("g:writer", "")
    first, second = list(found.lines())[-2:]
    assert first.startswith("caused in a by the stack") and first.endswith(describe(led))
    assert second == "caused in b by no task: a timer or a router"


def test_description_of_a_record() -> None:
    assert describe(record(1)) == "0.100000000 h sent udp 10.0.0.1:7 -> [fd00::2]:9 60 B [h:task]"
