"""Lines of JSON: the rows of a job, and its output. No I/O."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

from msgspec import Meta

from ....transport.decoding import read_json
from ....transport.errors import Undecodable
from ....transport.message import Message
from .. import defaults
from ..errors import BadOutcome
from .kind import BadRow, Fields

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that is not empty. `start` and `stop` are its place in bytes; `stop` is
    behind its newline."""

    number: int
    start: int
    stop: int
    data: bytes


def lines_of(data: bytes, first: int = 1) -> Iterator[Line]:
    """Yield the lines that are not empty. The first line of `data` has the number `first`."""
    start, number = 0, first
    while start < len(data):
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end + 1
        line = data[start : stop - (end >= 0)].strip()
        if line:
            yield Line(number, start, stop, line)
        start, number = stop, number + 1


def read_row(kind: type[M], line: bytes) -> M:
    """Decode a line as a row. Raises BadRow if it is too long or malformed."""
    if len(line) > defaults.ROW_BYTES:
        most = defaults.ROW_BYTES
        raise BadRow(f"expected a row of at most {most} bytes, got {len(line)}", "row-too-long")
    try:
        return read_json(kind, line, limit=defaults.ROW_BYTES)
    except Undecodable as error:
        why = str(error).removeprefix("jSON is malformed: ")
        raise BadRow(f"expected a JSON object: {why}") from None


def output_line(number: int, fields: Fields) -> bytes:
    """Encode the output of the row in line `number`."""
    return json.dumps({"line": number, **fields}, ensure_ascii=False).encode() + b"\n"


def error_fields(code: str, message: str) -> Fields:
    """Return the output of a row that failed."""
    return {"error": code, "message": message[: defaults.ROW_MESSAGE]}


class OutputHead(Message, frozen=True):
    """The fields that the output of every row has. `error` is a code if the row failed."""

    line: Annotated[int, Meta(ge=1, le=2**32)]
    error: Annotated[str, Meta(max_length=64)] | None = None


def check_output(data: bytes, rows: int, first: int, last: int) -> list[OutputHead]:
    """Check the output of a piece, which another node made: one line for each row, in order.

    Raises BadOutcome if there is another number of lines, or one is not in the piece.
    """
    heads, before = list[OutputHead](), first - 1
    for line in lines_of(data):
        if len(heads) == rows:
            raise BadOutcome(f"the output of a job has more than {rows} lines")
        try:
            head = read_json(OutputHead, line.data, limit=defaults.RESULT_BYTES)
        except Undecodable as error:
            raise BadOutcome(f"the output of a job is malformed: {error}") from None
        if not before < head.line <= last:
            raise BadOutcome(f"the output of a job names line {head.line} out of order")
        before = head.line
        heads.append(head)
    if len(heads) < rows:
        raise BadOutcome(f"the output of a job has {len(heads)} lines for {rows} rows")
    return heads
