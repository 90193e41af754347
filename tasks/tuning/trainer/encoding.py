"""Training data as rows of token ids, encoded by the model's text process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import trio

from ....transport.errors import ShoalError
from ....transport.host.seam import Host
from ...errors import TextError
from ...text.frames import TextInfo
from ...text.process import ChatTurn
from . import defaults
from .dataset import (
    Completion,
    DataReport,
    Example,
    LineReader,
    Text,
    Unusable,
    parse_line,
    pieces,
)
from .errors import TuningError
from .rows import RowsWriter, TrainingRow

Note = Callable[[int, int], None]
"""Takes the bytes done and in total."""
_OF_ONE_LINE = ("text-limit", "text-crashed", "text-too-large", "text-failed", "template-failed",
                "template-limit")  # fmt: skip
"""Codes of failures that the text of one line causes."""


class Encoder(Protocol):
    """The part of a text process that encodes."""

    @property
    def info(self) -> TextInfo: ...

    async def encode(self, text: str) -> list[int]: ...

    async def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows of one line, and what was done to it."""

    rows: tuple[TrainingRow, ...]
    cut: bool = False
    whole_chat: bool = False


async def write_rows(
    host: Host, file: Path, encoder: Encoder, writer: RowsWriter, note: Note
) -> DataReport:
    """Encode a file of training data. Rows are longer than `writer.length` by at most one id, whose
    position is not computed.

    Raises TuningError: `data-too-large`, `unreadable`, `no-data`, or `no-template` if the file has
    conversations and the model has no template for them.
    """
    size = await _size(host, file)
    report, reader, at = DataReport(), LineReader(), 0
    while True:
        try:
            piece = await host.offload(
                host.files.read_range, file, at, min(defaults.READ_BYTES, size - at)
            )
        except OSError as error:
            raise _unreadable(file, error) from None
        examples = await host.offload(_parsed, reader, piece, report)
        encoded = await _encoded(encoder, examples, writer.length, report)
        await writer.add([row for each in encoded for row in each.rows])
        at += len(piece)
        note(at, size)
        if not piece:
            break
    report.rows, report.tokens, report.counted = writer.rows, writer.tokens, writer.counted
    if not report.rows:
        raise _no_data(file, report)
    return report


async def _size(host: Host, file: Path) -> int:
    """Return the bytes of a file. Raises TuningError if there is none, or it is too large."""
    try:
        size = await host.offload(host.files.size, file)
    except OSError as error:
        raise _unreadable(file, error) from None
    if size is None:
        raise TuningError("unreadable", f"there is no file `{file}`", hint="check `--data FILE`")
    if size > defaults.DATA_BYTES:
        raise TuningError(
            "data-too-large",
            f"`{file}` has {size >> 20} MiB, at most {defaults.DATA_BYTES >> 20} MiB may be",
            hint=f"use a part of it: `head -c {defaults.DATA_BYTES >> 20}M FILE > PART`",
        )
    return size


def _unreadable(file: Path, error: OSError) -> TuningError:
    return TuningError(
        "unreadable",
        f"cannot read `{file}`: {(error.strerror or str(error)).lower()}",
        hint="name a file with one JSON object on each line, which this user may read",
    )


def _no_data(file: Path, report: DataReport) -> TuningError:
    if not report.lines:
        why = "it is empty"
    elif report.named:
        first = report.named[0]
        why = f"{report.bad} of {report.lines} lines are broken; line {first.line}: {first.why}"
    else:
        why = f"none of its {report.lines} lines has anything to learn"
    return TuningError(
        "no-data",
        f"`{file}` cannot be used: {why}",
        hint='each line must be like {"text": "…"}; docs/finetune.md shows the forms',
    )


def _parsed(reader: LineReader, piece: bytes, report: DataReport) -> list[tuple[int, Example]]:
    """Parse the lines that a piece of the file completes. Blocking."""
    found = []
    for number, line in reader.feed(piece):
        report.lines += 1
        try:
            found.append((number, parse_line(line)))
        except Unusable as error:
            report.refuse(number, str(error))
    return found


async def _encoded(
    encoder: Encoder, examples: Sequence[tuple[int, Example]], length: int, report: DataReport
) -> list[Encoded]:
    """Encode the examples of some lines, several at once, and return them in their order."""
    found: dict[int, Encoded] = {}
    failures: list[ShoalError] = []
    left = iter(examples)

    async def some() -> None:
        for number, example in left:
            try:
                found[number] = await encode(encoder, example, length)
            except TextError as error:
                if error.code not in _OF_ONE_LINE:
                    failures.append(error)
                    nursery.cancel_scope.cancel()
                    return
                report.refuse(number, error.message)

    async with trio.open_nursery() as nursery:
        for _ in range(defaults.ENCODES_AT_ONCE):
            nursery.start_soon(some)
    if failures:
        raise _whole(failures[0])
    report.named.sort(key=lambda bad: bad.line)
    encoded = [found[number] for number, _ in examples if number in found]
    report.split += sum(len(each.rows) > 1 for each in encoded)
    report.cut += sum(each.cut for each in encoded)
    report.empty += sum(not each.rows for each in encoded)
    report.whole_chats += sum(each.whole_chat for each in encoded)
    return encoded


def _whole(error: ShoalError) -> ShoalError:
    """Return the error for a data set of which no line can be encoded."""
    if isinstance(error, TextError) and error.code == "no-template":
        return TuningError(
            error.code,
            "the data has conversations, and the model has no chat template",
            hint='use lines like {"prompt": "…", "completion": "…"}',
        )
    return error


async def encode(encoder: Encoder, example: Example, length: int) -> Encoded:
    """Return the rows of one example. None of them computes more than `length` positions."""
    if isinstance(example, Text):
        return await _text(encoder, example.text, length)
    if isinstance(example, Completion):
        return await _completion(encoder, example, length)
    return await _chat(encoder, example.messages, length)


async def _text(encoder: Encoder, text: str, length: int) -> Encoded:
    """Everything is learned. A longer text is split."""
    if not text:
        return Encoded(())
    rows = list[TrainingRow]()
    every = list(pieces(text))
    for number, piece in enumerate(every, 1):
        ids = await encoder.encode(piece)
        if number == len(every):
            ids = _ended(encoder, ids)
        # The last id of a row begins the next one, so that each id is learned once.
        for at in range(0, max(1, len(ids) - 1), length):
            rows.append(TrainingRow(ids[at : at + length + 1], 1, None))
    return Encoded(tuple(row for row in rows if row.learned))


async def _completion(encoder: Encoder, example: Completion, length: int) -> Encoded:
    """Only the completion is learned. A longer one is cut.

    The whole is encoded at once, because many tokenizers encode the beginning of a text in another
    way. The ids that both have in common are the prompt.
    """
    if not example.completion:
        return Encoded(())
    prompt = await encoder.encode(example.prompt) if example.prompt else []
    ids = _ended(encoder, await encoder.encode(example.prompt + example.completion))
    row = TrainingRow(ids[: length + 1], max(1, _common(prompt, ids)), None)
    return Encoded((row,) if row.learned else (), cut=len(ids) > length + 1)


async def _chat(encoder: Encoder, messages: Sequence[ChatTurn], length: int) -> Encoded:
    """Learn the assistant's messages, if the template shows where they are; else everything."""
    ids = await encoder.encode_chat(messages, add_generation_prompt=False)
    spans = await _spans(encoder, messages, ids, length)
    cut = len(ids) > length + 1
    if spans is None:
        row = TrainingRow(ids[: length + 1], 1, None)
        return Encoded((row,) if row.learned else (), cut, whole_chat=True)
    row = TrainingRow(ids[: length + 1], 1, tuple(spans))
    return Encoded((row,) if row.learned else (), cut)


async def _spans(
    encoder: Encoder, messages: Sequence[ChatTurn], ids: Sequence[int], length: int
) -> list[tuple[int, int]] | None:
    """Return where in `ids` the assistant's messages are, as (start, stop).

    For each, the conversation is rendered up to it. Returns None if that is not the beginning of
    the whole: some templates shorten earlier messages.
    """
    found = list[tuple[int, int]]()
    for number, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = await encoder.encode_chat(messages[:number]) if number else []
        if len(before) > length:
            break
        after = await encoder.encode_chat(messages[: number + 1], add_generation_prompt=False)
        start = _common(before, ids)
        if start < len(before) - 1 or _common(after, ids) < len(after) - 1 or not number:
            return None
        found.append((start, len(after)))
    return found


def _ended(encoder: Encoder, ids: list[int]) -> list[int]:
    """Return ids with the one that ends a text, if the model has one."""
    end = encoder.info.eos
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
