"""safetensors: headers that lie, are cut off, or are too large."""

import copy
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.dht import defaults
from shoal.dht.content.safetensors import parse_header, read_header, read_index
from shoal.dht.errors import ModelError
from shoal.transport.host.realfiles import RealFiles

from ..models import Weights, header_of, safetensors, tensor, weights

FILES = RealFiles()
PATH = Path("model.safetensors")
TWO: Weights = {"a": tensor([2, 3], 1), "b": tensor([4], 2, "F32")}


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelError) as error:
        read_header(FILES, path)
    assert error.value.hint
    return error.value.code


def test_a_valid_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(TWO))
    found = read_header(FILES, path)
    assert {name: (part.dtype, part.shape, part.size) for name, part in found.items()} == {
        "a": ("BF16", (2, 3), 12),
        "b": ("F32", (4,), 16),
    }
    assert path.read_bytes()[found["b"].offset :][:16] == TWO["b"][2]


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    data = safetensors(TWO)
    for size in range(len(data)):
        assert refused(tmp_path / "m.safetensors", data[:size]) in ("truncated", "bad-header")


def test_a_wrong_header_length(tmp_path: Path) -> None:
    path, rest = tmp_path / "m.safetensors", safetensors(TWO)[8:]
    assert refused(path, struct.pack("<Q", 2**63) + rest) == "bad-header"
    assert refused(path, struct.pack("<Q", defaults.HEADER_LIMIT + 1) + rest) == "bad-header"
    assert refused(path, struct.pack("<Q", len(rest) + 1) + rest) == "truncated"
    assert refused(path, struct.pack("<Q", 10) + rest) == "bad-header"
    assert refused(path, struct.pack("<Q", 0) + rest) == "bad-header"


def lies() -> list[dict[str, Any]]:
    good = header_of(TWO)

    def change(name: str, **fields: Any) -> dict[str, Any]:
        header = copy.deepcopy(good)
        header[name] = {k: v for k, v in {**header[name], **fields}.items() if v is not None}
        return header

    return [
        change("a", data_offsets=[0, 28]),  # overlaps b
        change("b", data_offsets=[0, 16]),
        change("b", data_offsets=[13, 29]),  # a hole, and past the end
        change("b", data_offsets=[12, 12]),
        change("b", data_offsets=[28, 12]),
        change("b", data_offsets=[-12, 4]),
        change("b", data_offsets=[12]),
        change("b", data_offsets=[12, 28, 30]),
        change("b", data_offsets=[12.0, 28.0]),
        change("b", data_offsets=[2**64, 2**64 + 16]),
        change("b", data_offsets="12:28"),
        change("b", data_offsets=[False, True]),
        change("b", shape=[5]),
        change("b", shape=[-4]),
        change("b", shape=[2**62, 4]),
        change("b", shape=[1] * 9),
        change("b", shape=4),
        change("b", shape=None),
        change("b", dtype="BF16"),
        change("b", dtype=None),
        change("b", dtype=["F32"]),
        change("b", more=1),
        {**good, "b": 7},
        {name: item for name, item in good.items() if name != "b"},  # bytes of no tensor
        {"__metadata__": {}},
    ]


@pytest.mark.parametrize("number", range(len(lies())))
def test_wrong_entries_are_refused(tmp_path: Path, number: int) -> None:
    code = refused(tmp_path / "m.safetensors", safetensors(TWO, lies()[number]))
    assert code in ("bad-header", "truncated")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1}{',
        b"\xff\xfe",
        b'{"a":' + b"[" * 5000,
        b'{"a":{},"a":{}}',
        b"NaN",
    ],
)
def test_an_invalid_header_text_is_refused(text: bytes) -> None:
    with pytest.raises(ModelError) as error:
        parse_header(text, PATH, 8 + len(text))
    assert error.value.code == "bad-header"


def test_a_duplicate_name_is_refused() -> None:
    entry = json.dumps(header_of({"a": TWO["a"]})["a"])
    text = f'{{"a":{entry},"a":{entry}}}'.encode()
    with pytest.raises(ModelError, match="duplicate"):
        parse_header(text, PATH, 8 + len(text) + 12)


def test_unsupported_dtypes_have_their_own_code(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    assert refused(path, safetensors({"a": tensor([4], 1, "I64")})) == "unsupported-dtype"
    assert refused(path, safetensors({"a": tensor([4], 8, "F64")})) == "unsupported-dtype"


def test_derived_buffers_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    path.write_bytes(safetensors({**TWO, name: tensor([4], 3, "I64")}))
    assert set(read_header(FILES, path)) == {"a", "b"}


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    """Opening a pipe without a writer would block."""
    import os

    os.mkfifo(tmp_path / "m.safetensors")
    with pytest.raises(ModelError) as error:
        read_header(FILES, tmp_path / "m.safetensors")
    assert error.value.code == "truncated"


@pytest.mark.parametrize("unit", [b'{"":', b"[[],", b'"a":1,', b"{},"])
def test_a_large_hostile_header_takes_little_memory(unit: bytes) -> None:
    """16 MiB of brackets are refused before they become a gigabyte of objects."""
    text = b"{" + unit * (defaults.HEADER_LIMIT // len(unit) - 1)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as error:
            parse_header(text, PATH, len(text) + 8)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert error.value.code == "bad-header"


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        parse_header(data, PATH, len(data) + 9)


@settings(max_examples=300)
@given(st.data())
def test_changed_headers_stay_inside_the_file(data: st.DataObject) -> None:
    whole = safetensors(TWO)
    size = int.from_bytes(whole[:8], "little")
    header = bytearray(whole[8 : 8 + size])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse_header(bytes(header), PATH, len(whole))
    except ModelError as error:
        assert error.code in ("bad-header", "truncated", "unsupported-dtype")
        return
    assert sum(part.size for part in found.values()) <= 28
    assert all(8 + size <= part.offset <= len(whole) - part.size for part in found.values())


def index(path: Path, value: object) -> dict[str, str]:
    path.write_text(json.dumps(value) if not isinstance(value, str) else value)
    return read_index(FILES, path)


def test_a_valid_index(tmp_path: Path) -> None:
    names = dict.fromkeys(weights(), "model-00001-of-00001.safetensors")
    assert index(tmp_path / "i.json", {"metadata": {}, "weight_map": names}) == names


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "..safetensors",
        ".hidden.safetensors",
        "pytorch_model.bin",
        "x\x00.safetensors",
        "x" * 200 + ".safetensors",
        "",
        7,
        None,
    ],
)
def test_index_names_are_plain(tmp_path: Path, name: object) -> None:
    with pytest.raises(ModelError) as error:
        index(tmp_path / "i.json", {"weight_map": {"a": name}})
    assert error.value.code == "bad-index"


@pytest.mark.parametrize("value", ["{", [], {}, {"weight_map": {}}, {"weight_map": []}, "[" * 9999])
def test_invalid_indexes_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelError) as error:
        index(tmp_path / "i.json", value)
    assert error.value.code == "bad-index"


def test_an_index_may_name_a_limited_number_of_files(tmp_path: Path) -> None:
    names = {str(n): f"m{n}.safetensors" for n in range(defaults.SHARDS_LIMIT + 1)}
    with pytest.raises(ModelError, match="more than"):
        index(tmp_path / "i.json", {"weight_map": names})
