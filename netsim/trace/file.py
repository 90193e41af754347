"""Reads trace files, and finds the first difference between two of them.

A trace file has the records of `Trace` (`trace.py`), each packed with msgpack, one after the other.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, BinaryIO, Final

import msgpack

from ..errors import BadTrace
from ..network.packet import NAMES
from .trace import Record

_CHUNK: Final = 1 << 16  # bytes
# Types of a record's fields.
_FIELDS: Final = (float, str, str, int, tuple, tuple, int, str)


def read(file: BinaryIO, name: str = "trace") -> Iterator[Record]:
    """Yield the records of a trace file. `name` is the file's name in errors.

    Raises BadTrace if the file is not a trace, or is truncated.
    """
    unpacker = msgpack.Unpacker(
        use_list=False, max_array_len=len(_FIELDS), max_map_len=0, max_ext_len=0
    )
    fed = count = whole = 0
    while chunk := file.read(_CHUNK):
        fed += len(chunk)
        try:
            unpacker.feed(chunk)
            for record in unpacker:
                yield _checked(record, name, count)
                count += 1
                # Read the position now: later it would include the start of the next record.
                whole = unpacker.tell()
        except (ValueError, msgpack.UnpackException) as error:
            raise BadTrace(f"{name} is not a trace: record {count} cannot be read") from error
    if whole != fed:
        raise BadTrace(
            f"{name} is truncated: it ends {fed - whole} bytes into record {count}\n"
            "hint: the run that wrote it was ended before it closed its trace"
        )


def _checked(record: Any, name: str, count: int) -> Record:
    """Return an object that has the form of a record. Raises BadTrace if it has another form."""
    if (
        not isinstance(record, tuple)
        or len(record) != len(_FIELDS)
        or not all(map(isinstance, record, _FIELDS))
    ):
        raise BadTrace(f"{name} is not a trace: record {count} is not one of a packet")
    return record


@dataclass(frozen=True)
class Difference:
    """First difference of two traces: the records `a` and `b` at the same index. A record is None
    if its trace has already ended.
    """

    index: int  # number of the first record that differs, from 0
    a: Record | None
    b: Record | None
    before: list[Record]  # the last records that both traces have
    after_a: list[Record]
    after_b: list[Record]
    # Packets from the network stack or a router have no task as their cause. For such a record,
    # `led_a` or `led_b` is the last earlier record between the same two addresses, in either
    # direction, whose cause is a task.
    led_a: Record | None = None
    led_b: Record | None = None

    @property
    def causes(self) -> tuple[str, str]:
        """The tasks that caused the two records, directly or through an earlier packet.

        A text is empty if no task is known.
        """
        return _cause(self.a, self.led_a), _cause(self.b, self.led_b)

    def lines(self, a: str = "a", b: str = "b") -> Iterator[str]:
        """Yield lines that describe the difference to a person.

        `a` and `b` are the names of the traces.
        """
        yield f"record {self.index} differs"
        for common in self.before:
            yield f"   {describe(common)}"
        for sign, name, record, after in (
            ("-", a, self.a, self.after_a),
            ("+", b, self.b, self.after_b),
        ):
            yield f"{sign}  {describe(record) if record else f'(end of {name})'}"
            for later in after:
                yield f"{sign}      {describe(later)}"
        yield f"caused in {a} by {_reason(self.a, self.led_a)}"
        yield f"caused in {b} by {_reason(self.b, self.led_b)}"


def _cause(record: Record | None, led: Record | None) -> str:
    """Return the task that caused a record; an empty text if none is known."""
    found = record if record is not None and record[-1] else led
    return found[-1] if found is not None and record is not None else ""


def _reason(record: Record | None, led: Record | None) -> str:
    """Describe what caused a record. `led` is the earlier packet that may have led to it."""
    if record is None:
        return "its end"
    if record[-1]:
        return record[-1]
    if led is None:
        return "no task: a timer or a router"
    return f"the stack or a router; caused by: {describe(led)}"


def _flow(record: Record) -> tuple[tuple[str, int], ...]:
    """Return the two addresses of a record in a fixed order, whatever its direction."""
    return tuple(sorted((record[4], record[5])))


def describe(record: Record) -> str:
    """Format a record as one line of text."""
    time, what, host, proto, src, dst, size, cause = record
    way = f"{_address(src)} -> {_address(dst)}"
    return f"{time:.9f} {host} {what} {NAMES.get(proto, proto)} {way} {size} B [{cause}]"


def _address(address: tuple[str, int]) -> str:
    """Format an address as `host:port`."""
    ip, port = address
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def first_difference(
    a: BinaryIO, b: BinaryIO, *, context: int = 5, names: tuple[str, str] = ("a", "b")
) -> Difference | None:
    """Find the first difference of two trace files. Return None if they are equal.

    `context` is the number of records to show before and after it. `names` are the files' names in
    errors. Raises BadTrace if a file is not a trace, or is truncated.
    """
    records_a, records_b = read(a, names[0]), read(b, names[1])
    before: deque[Record] = deque(maxlen=context)
    # For each pair of addresses, the last packet that a task has caused.
    led: dict[tuple[tuple[str, int], ...], Record] = {}
    for index, (one, other) in enumerate(zip_longest(records_a, records_b)):
        if one != other:
            return Difference(
                index,
                one,
                other,
                list(before),
                list(islice(records_a, context)),
                list(islice(records_b, context)),
                led.get(_flow(one)) if one is not None else None,
                led.get(_flow(other)) if other is not None else None,
            )
        before.append(one)
        if one[-1]:
            led[_flow(one)] = one
    return None
