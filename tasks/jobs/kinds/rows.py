"""Lines of JSON: the rows of a job, and its output. No I/O."""

import json
import re
from collections.abc import Iterator, Mapping
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

TOO_LONG = b'{"row": "too long"}'
"""Line in place of a row that was too long to be part of a job."""


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of a file that is not empty. `start` and `stop` are its place in bytes; `stop` is
    behind its newline."""

    number: int
    start: int
    stop: int
    data: bytes


def lines_of(data: bytes, first: int = 1) -> Iterator[FileLine]:
    """Yield the lines that are not empty. The first line of `data` has the number `first`."""
    start, number = 0, first
    while start < len(data):
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end + 1
        line = data[start : stop - (end >= 0)].strip()
        if line:
            yield FileLine(number, start, stop, line)
        start, number = stop, number + 1


def read_row(kind: type[M], line: bytes, forms: Mapping[str, str]) -> M:
    """Decode a line as a row. `forms` says in words what each field must be.

    Raises BadRow if the line is too long or malformed.
    """
    if len(line) > defaults.ROW_BYTES or line == TOO_LONG:
        raise BadRow(f"longer than {defaults.ROW_BYTES // 1024} KiB", "row-too-long")
    try:
        return read_json(kind, line, limit=defaults.ROW_BYTES)
    except Undecodable as error:
        raise BadRow(_why(line, str(error), forms)) from None


def _why(line: bytes, error: str, forms: Mapping[str, str]) -> str:
    """Return in plain words why a line is no row. `error` is what the decoder says."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except RecursionError:
        return "nested too deeply"
    except json.JSONDecodeError as bad:
        return f"not JSON: {bad.msg[:1].lower()}{bad.msg[1:]} at character {bad.pos + 1}"
    except ValueError:  # a number with thousands of digits
        return "not JSON: a number is too long"
    if not isinstance(value, dict):
        return f'not an object, such as {{"{next(iter(forms))}": "…"}}'
    if missing := _MISSING.search(error):
        return f"`{missing[1]}` is missing"
    at = _FIELD.search(error)
    if at is None or at[1] not in forms:
        return error.removeprefix("jSON is malformed: ")
    if value.get(at[1]) in ("", []):
        return f"`{at[1]}` is empty"
    return f"`{at[1]}` is not {forms[at[1]]}"


_FIELD = re.compile(r"`\$\.(\w+)")  # a field of the row in an error of the decoder
_MISSING = re.compile(r"missing required field `(\w+)`$")


def output_line(number: int, fields: Fields) -> bytes:
    """Encode the output of the row in line `number`."""
    return json.dumps({"line": number, **fields}, ensure_ascii=False).encode() + b"\n"


def error_fields(code: str, message: str) -> Fields:
    """Return the output of a row that failed."""
    return {"error": code, "message": message[: defaults.ROW_MESSAGE]}


def read_output(kind: type[M], line: bytes) -> M:
    """Decode a line of output that another node made. Raises BadOutcome if it is malformed."""
    try:
        return read_json(kind, line, limit=defaults.RESULT_BYTES)
    except Undecodable as error:
        raise BadOutcome(f"the output of a job is malformed: {error}") from None


class OutputHead(Message, frozen=True):
    """The fields that the output of every row has. `error` is a code if the row failed."""

    line: Annotated[int, Meta(ge=1, le=2**32)]
    error: Annotated[str, Meta(max_length=64)] | None = None


def check_output(data: bytes, rows: int, first: int, last: int) -> list[OutputHead]:
    """Check the output of a piece, which another node made: one line for each row, in order.

    Raises BadOutcome if there is another number of lines, or one is not in the piece.
    """
    heads = check_some_output(data, rows, first, last)
    if len(heads) < rows:
        raise BadOutcome(f"the output of a job has {len(heads)} lines for {rows} rows")
    return heads


def check_some_output(data: bytes, rows: int, first: int, last: int) -> list[OutputHead]:
    """Check a part of the output of a piece: lines for some of its rows, in order.

    Raises BadOutcome if there are more lines than rows, or one is not in the piece.
    """
    heads, before = list[OutputHead](), first - 1
    for line in lines_of(data):
        if len(heads) == rows:
            raise BadOutcome(f"the output of a job has more than {rows} lines")
        head = read_output(OutputHead, line.data)
        if not before < head.line <= last:
            raise BadOutcome(f"the output of a job names line {head.line} out of order")
        before = head.line
        heads.append(head)
    return heads
