"""Headers of safetensors files: https://github.com/huggingface/safetensors#format.

A file has the length of its header (eight bytes, little-endian), the header (JSON), then the
tensors. Files may come from strangers. Everything is therefore limited before it is parsed, and
offsets are accepted only if the tensors fill the file exactly.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ...transport.decoding import typed
from ...transport.errors import Undecodable
from ...transport.host.seam import Files
from ...transport.message import Message
from ..defaults import (
    DIM_LIMIT,
    DIMS_LIMIT,
    HEADER_LIMIT,
    INDEX_LIMIT,
    ITEM_BYTES,
    SHARDS_LIMIT,
    TENSORS_LIMIT,
)
from ..errors import ModelError, unreadable
from . import canonical

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,127}\.safetensors")
_AGAIN = "download the folder again; its files are incomplete or not safetensors"
# Buffers in old checkpoints. They are skipped, because every engine computes them from the config.
_DERIVED = re.compile(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)")


_Natural = Annotated[int, Meta(ge=0, lt=2**53)]


class _TensorEntry(Message, frozen=True, forbid_unknown_fields=True):
    """Entry of one tensor in a header."""

    dtype: str
    shape: Annotated[tuple[_Natural, ...], Meta(max_length=DIMS_LIMIT)]
    data_offsets: tuple[_Natural, _Natural]  # bytes, counted from the end of the header

    def check(self) -> None:
        """Raise ValueError if the tensor would end before it starts."""
        if self.data_offsets[0] > self.data_offsets[1]:
            raise ValueError("`data_offsets` must ascend")


@dataclass(frozen=True, slots=True)
class Slice:
    """Place of a tensor's bytes: `size` bytes at `offset` from the start of the file at `path`."""

    path: Path
    offset: int
    size: int
    dtype: str
    shape: tuple[int, ...]


def read_header(
    files: Files, path: Path, dtypes: Mapping[str, int] = ITEM_BYTES
) -> dict[str, Slice]:
    """Read a file's header, and return the slice of each tensor by name. Blocking.

    `dtypes` maps the allowed dtypes to their bytes.

    Raises ModelError: `missing-file`, `truncated`, `bad-header`, `unsupported-dtype`, `unreadable`.
    """
    try:
        size = files.size(path)
        if size is None:
            raise ModelError("missing-file", f"`{path}` does not exist", hint=_AGAIN)
        if size < 8:  # pipes and devices have size 0 and must not be opened
            raise _truncated(path, f"it has {size} bytes")
        length = int.from_bytes(files.read_range(path, 0, 8), "little")
        if length > HEADER_LIMIT:
            raise _bad(path, f"its header claims {length} bytes, the limit is {HEADER_LIMIT}")
        if length > size - 8:
            raise _truncated(path, f"its header claims {length} bytes, {size - 8} follow")
        data = files.read_range(path, 8, length)
    except OSError as error:
        raise unreadable(path, error) from None
    return parse_header(data, path, size, dtypes)


def parse_header(
    data: bytes, path: Path, file_size: int, dtypes: Mapping[str, int] = ITEM_BYTES
) -> dict[str, Slice]:
    """Parse and check the JSON of a header, and return the slice of each tensor by name.

    `file_size` is in bytes. Raises ModelError as `read_header` does.
    """
    # A tensor has one `{`, two `[`, some commas: counting them bounds what parsing builds.
    counts = (data.count(b"{"), data.count(b"[") // 2, data.count(b",") // (DIMS_LIMIT + 4))
    if max(counts) > TENSORS_LIMIT:
        raise _bad(path, f"its header has more than {TENSORS_LIMIT} entries")
    try:
        header = canonical.parse_json(data, depth=3)
    except ValueError as error:
        raise _bad(path, f"its header is invalid: {error}") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    start = 8 + len(data)
    slices = {name: _slice(name, value, path, start, dtypes) for name, value in header.items()}
    _check_tiling(slices, path, start, file_size)
    return {name: part for name, part in slices.items() if _is_weight(name, part, path, dtypes)}


def _slice(name: str, value: object, path: Path, start: int, dtypes: Mapping[str, int]) -> Slice:
    """Check a tensor's entry in the header, and return the slice of the file with its bytes.

    The data of the file begins at byte `start`. Raises ModelError `bad-header` if the entry is
    malformed or does not match its shape.
    """
    try:
        told = typed(_TensorEntry, value)
    except Undecodable:
        raise _bad(path, f"the entry of {ascii(name)[:80]} is malformed") from None
    size = told.data_offsets[1] - told.data_offsets[0]
    if told.dtype in dtypes and math.prod(told.shape) * dtypes[told.dtype] != size:
        raise _bad(path, f"{ascii(name)[:80]} has {size} bytes, which does not match its shape")
    return Slice(path, start + told.data_offsets[0], size, told.dtype, told.shape)


def _check_tiling(slices: dict[str, Slice], path: Path, start: int, file_size: int) -> None:
    """Check that the tensors fill the file from `start` without overlaps or holes.

    The format requires it. Raises ModelError `bad-header`, or `truncated` if the file is too short.
    """
    position = start
    for name, part in sorted(slices.items(), key=lambda item: (item[1].offset, item[1].size)):
        if part.offset != position:
            kind = "overlaps another" if part.offset < position else "leaves a hole before it"
            raise _bad(path, f"the tensor {ascii(name)[:80]} {kind}")
        position += part.size
    if position > file_size:
        raise _truncated(path, f"its tensors end at byte {position}, the file at {file_size}")
    if position < file_size:
        raise _bad(path, f"{file_size - position} bytes belong to no tensor")


def _is_weight(name: str, part: Slice, path: Path, dtypes: Mapping[str, int]) -> bool:
    """Return whether a tensor is a weight, and not a buffer that engines compute from the config.

    Raises ModelError if the weight has an unsupported dtype or a dimension out of range.
    """
    if _DERIVED.fullmatch(name):
        return False
    if part.dtype not in dtypes:
        raise ModelError(
            "unsupported-dtype",
            f"`{path.name}`: {ascii(name)[:80]} is {ascii(part.dtype)[:16]}, "
            f"supported are {', '.join(dtypes)}",
            hint="use the model's version in bfloat16, float16 or float32",
        )
    if not all(1 <= n < DIM_LIMIT for n in part.shape):
        raise _bad(path, f"the shape of {ascii(name)[:80]} is out of range")
    return True


def read_index(files: Files, path: Path) -> dict[str, str]:
    """Return the file name of each tensor, from `model.safetensors.index.json`. Blocking.

    The file names contain no folders. Raises ModelError: `bad-index`, `unreadable`.
    """
    try:
        data = files.read(path, limit=INDEX_LIMIT)
    except OSError as error:
        raise unreadable(path, error) from None
    if data.count(b",") > 2 * TENSORS_LIMIT or data.count(b"[") > 1024:
        raise _bad_index(path, "it has too many entries")
    try:
        index = canonical.parse_json(data, depth=4)
    except ValueError as error:
        raise _bad_index(path, str(error)) from None
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise _bad_index(path, "it has no `weight_map`")
    for name in names.values():
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise _bad_index(path, f"{ascii(name)[:80]} is not a plain file name")
    if len(set(names.values())) > SHARDS_LIMIT:
        raise _bad_index(path, f"it names more than {SHARDS_LIMIT} files")
    return names


def _bad(path: Path, why: str) -> ModelError:
    return ModelError("bad-header", f"`{path}` is not a valid safetensors file: {why}", hint=_AGAIN)


def _truncated(path: Path, why: str) -> ModelError:
    return ModelError("truncated", f"`{path}` is cut off: {why}", hint=_AGAIN)


def _bad_index(path: Path, why: str) -> ModelError:
    return ModelError("bad-index", f"`{path}` is not a valid index: {why}", hint=_AGAIN)
