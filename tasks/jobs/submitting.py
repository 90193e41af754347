"""Preparation of a job from its author's rows: checks each row, and divides the rows into pieces.

No I/O. Broken rows are reported, and are part of the job: each gets an error as its output, in its
place. Spec: docs/spec/jobs.md.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..costs.shardcosts import ShardCosts
from . import defaults
from .errors import JobError
from .kinds.kind import BadRow, Kind, RowSize
from .kinds.rows import TOO_LONG, FileLine, lines_of
from .pieces import Piece, divide
from .spec import BlobPart, JobSpec
from .speed import JobSpeed


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A row that is malformed, by the number of its line."""

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose rows are checked and divided. `data` are the bytes of all rows."""

    data: bytes
    pieces: Sequence[Piece]
    broken: Sequence[BrokenLine]
    abstract: str

    @property
    def rows(self) -> int:
        """Number of rows, with the broken ones."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def is_inline(self) -> bool:
        """Whether the rows fit into the spec of the job."""
        return len(self.data) <= defaults.INLINE_ROWS_BYTES

    @property
    def is_inline_sealed(self) -> bool:
        """Whether the sealed rows fit into the spec of the job."""
        return len(self.data) <= defaults.SEALED_INLINE_BYTES

    def specs(self, spec: JobSpec, blob: str) -> list[tuple[JobSpec, int]]:
        """Return the spec and the number of rows of each piece. `blob` is the root of the rows, or
        "" if they are inline."""
        found = []
        for piece in self.pieces:
            each = replace(spec, first=piece.first, last=piece.last, abstract=self.abstract)
            if not blob:
                each = replace(each, lines=self.data[piece.start : piece.stop])
            else:
                part = BlobPart(blob, len(self.data), piece.start, piece.stop)
                each = replace(each, blob=part)
            found.append((each, piece.rows))
        return found


def prepare(
    data: bytes, kind: Kind[Any], spec: JobSpec, speed: JobSpeed, costs: ShardCosts
) -> Prepared:
    """Check the rows in `data`, and divide them by their predicted run time. Blocking: it takes up
    to a second.

    Raises JobError `no-rows` if there is none, `bad-rows` if all are broken, `input-too-large`, and
    `too-many-rows`.
    """
    if len(data) > defaults.INPUT_BYTES:
        raise too_large(len(data))
    sizes = dict[int, RowSize]()
    broken = list[BrokenLine]()
    abstract, too_long = "", list[FileLine]()
    lines = list(lines_of(data))
    for line in lines:
        try:
            row = kind.read(line.data)
            sizes[line.number] = kind.size(row, spec)
            abstract = abstract or kind.abstract(row)[: defaults.ABSTRACT]
        except BadRow as error:
            broken.append(BrokenLine(line.number, error.message))
            too_long += [line] if error.code == "row-too-long" else []
    if not lines:
        raise JobError("no-rows", "the file has no rows", hint=_SHAPES[kind.name])
    if len(broken) == len(lines):
        first = broken[0]
        raise JobError(
            "bad-rows",
            f"no row is valid; line {first.number}: {first.message}",
            hint=_SHAPES[kind.name],
        )
    if too_long:
        data = _without(data, too_long)
        lines = list(lines_of(data))
    what, nothing = (spec.root, kind.name), RowSize(0)

    def seconds(line: FileLine) -> float:
        return speed.seconds(what, costs, [sizes.get(line.number, nothing)])

    return Prepared(data, divide(lines, seconds), broken, abstract)


def too_large(size: int) -> JobError:
    """Return the error for an input that is too large."""
    most = defaults.INPUT_BYTES // 2**20
    return JobError(
        "input-too-large",
        f"the rows of a job have at most {most} MiB, these have {size / 2**20:.1f} MiB",
        hint=f"split the file: `split -C {most // 2}M --additional-suffix=.jsonl FILE part`",
    )


def row_of(kind: str, prompt: str) -> bytes:
    """Return the line of JSON with a prompt as the only row of a job."""
    field = "prompt" if kind == "generate" else "text"
    return json.dumps({field: prompt}, ensure_ascii=False).encode()


def _without(data: bytes, lines: Sequence[FileLine]) -> bytes:
    """Return the rows without the content of these lines, each of which becomes a short invalid
    row."""
    kept, at = list[bytes](), 0
    for line in lines:
        kept += [data[at : line.start], TOO_LONG + b"\n"]
        at = line.stop
    return b"".join((*kept, data[at:]))


_SHAPES = {
    "generate": 'each line is an object: {"prompt": "…"} or {"messages": [{"role": "user", '
    '"content": "…"}]}',
    "embed": 'each line is an object: {"text": "…"}',
    "evaluate": 'each line is an object: {"text": "…"}, or {"prompt": "…", "choices": ["…", "…"], '
    '"answer": 0}',
}
