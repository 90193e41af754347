"""Lines of training data: what is understood, and what is refused with its number."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.text.process import ChatTurn
from shoal.tasks.tuning.trainer import defaults
from shoal.tasks.tuning.trainer.dataset import (
    Chat,
    Completion,
    LineReader,
    Text,
    Unusable,
    parse_line,
    pieces,
)


def lines(data: bytes, size: int) -> list[tuple[int, bytes | None]]:
    reader = LineReader()
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    return [line for piece in [*cut, b""] for line in reader.feed(piece)]


@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=9),
       st.integers(1, 30))  # fmt: skip
def test_lines_do_not_depend_on_pieces(wanted: list[bytes], size: int) -> None:
    found = lines(b"\n".join(wanted), size)
    assert found == [(n, line) for n, line in enumerate(wanted, 1) if line.strip()]


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 5 << 20])
def test_a_line_that_is_too_long_is_skipped(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"x" * (defaults.LINE_BYTES + 1)
    found = lines(b"one\n" + long + b"\ntwo\n" + long, size)
    assert found == [(1, b"one"), (2, None), (3, b"two"), (4, None)]


def test_the_three_forms() -> None:
    assert parse_line(b'\xef\xbb\xbf{"text": "Hi", "more": 1}') == Text("Hi")
    assert parse_line(b'{"prompt": "a", "completion": "b"}') == Completion("a", "b")
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "x": 2}]
    assert parse_line(json.dumps({"messages": said}).encode()) == Chat(
        (ChatTurn("user", "Hi"), ChatTurn("assistant", "Ho"))
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (None, "longer than 4 MiB"),
        (b'{"text": "a"', "not JSON: expecting ',' delimiter at character 13"),
        (b"plain words", "not JSON"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 11"),
        (b'["text"]', "not an object"),
        (b'{"txt": "a"}', "has 'txt'; expected"),
        (b"{}", "has no field; expected"),
        (b'{"text": 5}', "`text` is not a text"),
        (b'{"prompt": "a"}', "`completion` is missing"),
        (b'{"text": "\\ud800"}', "not valid Unicode"),
        (b'{"messages": []}', "not a list of 1 to 256"),
        (b'{"messages": "a"}', "not a list of 1 to 256"),
        (b'{"messages": [{"role": "user", "content": ["a"]}]}', "message 1 is not"),
        (b'{"messages": ["a"]}', "message 1 is not"),
    ],
)
def test_broken_lines_say_why(line: bytes | None, why: str) -> None:
    with pytest.raises(Unusable) as raised:
        parse_line(line)
    assert why in str(raised.value)


@given(st.text(max_size=300), st.sampled_from([1, 7, 50]))
def test_pieces_are_the_text(text: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults, "PIECE_CHARACTERS", most)
        found = [*pieces(text)]
    assert "".join(found) == text and max(map(len, found)) <= most


def test_pieces_begin_with_white_space() -> None:
    text = "word " * 20_000
    found: list[Any] = [*pieces(text)]
    assert len(found) > 2 and all(piece.startswith(" word") for piece in found[1:])
