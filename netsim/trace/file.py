"""Trace files: a reader, and a search for the first difference between two of them.

A file is the records of `Trace` (trace.py), packed by msgpack one after the other.
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
_FIELDS: Final = (float, str, str, int, tuple, tuple, int, str)


def read(file: BinaryIO, name: str = "trace") -> Iterator[Record]:
    """Yield the records of a file. Raises BadTrace, naming the file by `name`."""
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
                # read it now: later it would include the start of the next record
                whole = unpacker.tell()
        except (ValueError, msgpack.UnpackException) as error:
            raise BadTrace(f"{name} is not a trace: record {count} cannot be read") from error
    if whole != fed:
        raise BadTrace(
            f"{name} is truncated: it ends {fed - whole} bytes into record {count}\n"
            "hint: the run that wrote it was ended before it closed its trace"
        )


def _checked(record: Any, name: str, count: int) -> Record:
    if (
        not isinstance(record, tuple)
        or len(record) != len(_FIELDS)
        or not all(map(isinstance, record, _FIELDS))
    ):
        raise BadTrace(f"{name} is not a trace: record {count} is not one of a packet")
    return record


@dataclass(frozen=True)
class Difference:
    """First difference of two traces. `a` or `b` is None if that trace has ended."""

    index: int  # of the first record that differs, from 0
    a: Record | None
    b: Record | None
    before: list[Record]  # the last records that both have
    after_a: list[Record]
    after_b: list[Record]
    # The last record with a task between the same two addresses, in either direction. It led to
    # what the stack or a router did without a task.
    led_a: Record | None = None
    led_b: Record | None = None

    @property
    def causes(self) -> tuple[str, str]:
        """The tasks that caused the two records, or led to them; empty for none."""
        return _cause(self.a, self.led_a), _cause(self.b, self.led_b)

    def lines(self, a: str = "a", b: str = "b") -> Iterator[str]:
        """Yield lines for a person; `a` and `b` name the traces."""
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
    found = record if record is not None and record[-1] else led
    return found[-1] if found is not None and record is not None else ""


def _reason(record: Record | None, led: Record | None) -> str:
    if record is None:
        return "its end"
    if record[-1]:
        return record[-1]
    if led is None:
        return "no task: a timer or a router"
    return f"the stack or a router; caused by: {describe(led)}"


def _flow(record: Record) -> tuple[tuple[str, int], ...]:
    """Return the connection of a record, whatever its direction."""
    return tuple(sorted((record[4], record[5])))


def describe(record: Record) -> str:
    """Return one line that describes a record."""
    time, what, host, proto, src, dst, size, cause = record
    way = f"{_address(src)} -> {_address(dst)}"
    return f"{time:.9f} {host} {what} {NAMES.get(proto, proto)} {way} {size} B [{cause}]"


def _address(address: tuple[str, int]) -> str:
    ip, port = address
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def first_difference(
    a: BinaryIO, b: BinaryIO, *, context: int = 5, names: tuple[str, str] = ("a", "b")
) -> Difference | None:
    """Return the first difference of two trace files; None if they are equal. Raises BadTrace."""
    records_a, records_b = read(a, names[0]), read(b, names[1])
    before: deque[Record] = deque(maxlen=context)
    led: dict[tuple[tuple[str, int], ...], Record] = {}  # by connection, the last with a task
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
