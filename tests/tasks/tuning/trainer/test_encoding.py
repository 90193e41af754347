"""Training data as rows, encoded by the real text process of the embedded model."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from tokenizers import Tokenizer

from shoal.node.control.server import only_shoal_error
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.text.process import ModelFiles, TextProcess
from shoal.tasks.tuning.interface import NOT_COUNTED
from shoal.tasks.tuning.trainer import defaults
from shoal.tasks.tuning.trainer.dataset import DataReport
from shoal.tasks.tuning.trainer.encoding import write_rows
from shoal.tasks.tuning.trainer.errors import Damaged, TuningError
from shoal.tasks.tuning.trainer.rows import RowFile, RowsWriter, counted
from shoal.transport.host.real import RealHost

TINY = embedded_folder()
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
HOST = RealHost()
EOS = 1


@asynccontextmanager
async def encoder(
    template: bytes | None = None, *, chat: bool = True
) -> AsyncIterator[TextProcess]:
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    del config["chat_template"]
    given = template or (TINY / "chat_template.jinja").read_bytes() if chat else None
    tokenizer = (TINY / "tokenizer.json").read_bytes()
    model = json.loads((TINY / "config.json").read_text())
    files = ModelFiles("tiny", tokenizer, model, json.dumps(config).encode(), chat_template=given)
    process = TextProcess(HOST, files)
    async with trio.open_nursery() as nursery:
        await nursery.start(process.run)
        yield process
        nursery.cancel_scope.cancel()


async def rows_of(
    folder: Path, lines: list[Any], length: int = 64, template: bytes | None = None, **more: Any
) -> tuple[DataReport, RowFile]:
    file = folder / "data.jsonl"
    file.write_bytes(
        b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n"
    )
    writer = RowsWriter(HOST, folder / "rows", length)
    try:
        async with encoder(template, **more) as text:
            report = await write_rows(HOST, file, text, writer, lambda done, total: None)
    except BaseExceptionGroup as group:
        raise only_shoal_error(group) from None
    return report, RowFile(HOST.files, folder / "rows", await writer.finish())


def learned(rows: RowFile, number: int) -> str:
    """The text of a row that is learned, with its special tokens."""
    batch = rows.batch([number])
    kept = batch.targets[0][batch.targets[0] != NOT_COUNTED]
    return str(TOKENIZER.decode(kept.tolist(), skip_special_tokens=False))


@pytest.mark.trio
async def test_a_text_is_learned_to_its_end(tmp_path: Path) -> None:
    report, rows = await rows_of(tmp_path, [{"text": "And God said, Let there be light."}])
    assert learned(rows, 0) == "And God said, Let there be light.</s>"
    batch = rows.batch([0])
    ids = TOKENIZER.encode("And God said, Let there be light.").ids
    assert batch.tokens[0].tolist() == ids and batch.targets[0].tolist() == [*ids[1:], EOS]
    assert (report.lines, report.rows, report.bad, report.split) == (1, 1, 0, 0)
    assert report.tokens == len(ids) + 1 and report.counted == len(ids)


@pytest.mark.trio
async def test_only_a_completion_is_learned(tmp_path: Path) -> None:
    line = {"prompt": "The king said", "completion": " to his servants: go."}
    _, rows = await rows_of(tmp_path, [line, {"prompt": "", "completion": "Alone."}])
    assert learned(rows, 0) == "to his servants: go.</s>" or learned(rows, 0).startswith(" to his")
    assert learned(rows, 1).endswith("Alone.</s>")


CHAT = {"messages": [
    {"role": "user", "content": "Who was David?"},
    {"role": "assistant", "content": "A king of Israel."},
    {"role": "user", "content": "And Saul?"},
    {"role": "assistant", "content": "A king before him."},
]}  # fmt: skip


@pytest.mark.trio
async def test_only_what_the_assistant_says_is_learned(tmp_path: Path) -> None:
    report, rows = await rows_of(tmp_path, [CHAT])
    found = learned(rows, 0)
    assert "A king of Israel.</s>" in found and "A king before him.</s>" in found
    assert "David" not in found and "Saul" not in found and report.whole_chats == 0


@pytest.mark.trio
async def test_a_template_that_does_not_tell_means_everything(tmp_path: Path) -> None:
    """This one writes the number of messages at the beginning."""
    template = b"{{ messages | length }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    report, rows = await rows_of(tmp_path, [CHAT], template=template)
    assert "Saul" in learned(rows, 0) and report.whole_chats == 1


@pytest.mark.trio
async def test_a_model_without_a_template_refuses_conversations(tmp_path: Path) -> None:
    with pytest.raises(TuningError) as raised:
        await rows_of(tmp_path, [CHAT], chat=False)
    assert raised.value.code == "no-template" and raised.value.hint is not None


@pytest.mark.trio
async def test_long_texts_are_split_and_others_cut(tmp_path: Path) -> None:
    text = " ".join(f"word{n}" for n in range(200))
    lines = [{"text": text}, {"prompt": "Hi", "completion": " " + text}, CHAT]
    report, rows = await rows_of(tmp_path, lines, length=32)
    ids = [*TOKENIZER.encode(text).ids, EOS]
    many = -(-(len(ids) - 1) // 32)
    split = [rows.batch([number]) for number in range(many)]
    assert [int(i) for b in split for i in b.targets[0]] == ids[1:]
    assert all(b.tokens.shape[1] <= 32 for b in split)
    assert (report.split, report.cut, report.rows) == (1, 2, many + 2)
    assert rows.batch([many]).tokens.shape == (1, 32)
    assert "A king of Israel." in learned(rows, many + 1)


@pytest.mark.trio
async def test_broken_lines_are_named_and_the_others_are_used(tmp_path: Path) -> None:
    lines = [{"text": "One."}, b"{broken", b"", {"text": ""}, {"txt": "x"}, b'{"text": "\xff"}',
             {"text": "Two."}]  # fmt: skip
    report, rows = await rows_of(tmp_path, lines)
    assert [bad.line for bad in report.named] == [2, 5, 6] and report.bad == 3
    assert (report.lines, report.rows, report.empty) == (6, 2, 1)
    assert learned(rows, 1) == "Two.</s>"


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ([], "no-data", "it is empty"),
        ([{"text": ""}, {"prompt": "a", "completion": ""}], "no-data", "anything to learn"),
        ([b"no", b"json"], "no-data", "2 of 2 lines are broken; line 1: not JSON"),
    ],
)
@pytest.mark.trio
async def test_nothing_to_learn(tmp_path: Path, lines: list[Any], code: str, words: str) -> None:
    with pytest.raises(TuningError) as raised:
        await rows_of(tmp_path, lines)
    assert raised.value.code == code and words in raised.value.message and raised.value.hint


@pytest.mark.trio
async def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "DATA_BYTES", 1 << 20)
    with pytest.raises(TuningError) as raised:
        await rows_of(tmp_path, [{"text": "a" * (2 << 20)}])
    assert raised.value.code == "data-too-large" and "head -c" in str(raised.value.hint)


@pytest.mark.trio
async def test_one_line_that_the_tokenizer_refuses_costs_only_itself(tmp_path: Path) -> None:
    """A role that makes the template fail."""
    template = b"""{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no') }}
        {% endif %}{{ m.content }}{% endfor %}"""
    bad = {"messages": [{"role": "bad", "content": "x"}]}
    report, _ = await rows_of(tmp_path, [CHAT, bad, CHAT], template=template)
    assert [each.line for each in report.named] == [2] and report.rows == 2


@pytest.mark.trio
async def test_batches_are_padded_at_their_end(tmp_path: Path) -> None:
    _, rows = await rows_of(tmp_path, [{"text": "One."}, {"text": "One and two and three."}])
    batch = rows.batch(np.array([0, 1]))
    short = int(rows.lengths[0]) - 1
    assert (batch.targets[0, short:] == NOT_COUNTED).all() and not batch.tokens[0, short:].any()
    assert counted(batch) == int(rows.lengths.sum()) - 2


@pytest.mark.trio
async def test_damaged_rows_are_noticed(tmp_path: Path) -> None:
    await rows_of(tmp_path, [{"text": "One."}])
    path = tmp_path / "rows"
    data = bytearray(path.read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    RowFile(HOST.files, path, digest)
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        RowFile(HOST.files, path, digest)
