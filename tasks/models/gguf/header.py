"""Reads the header of a GGUF file: metadata and tensor descriptions. The file is untrusted.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
Every count is compared with the bytes that are left before anything is built, the header has a
limit, and each tensor must lie within the file and beside the others.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ....dht.defaults import DIM_LIMIT, TENSORS_LIMIT
from ....dht.errors import ModelError, unreadable

HEADER_LIMIT: Final = 128 << 20  # bytes
METADATA_LIMIT: Final = 4096  # entries
ITEMS_LIMIT: Final = 1 << 21  # strings in one array
TEXT_LIMIT: Final = 4 << 20  # bytes of one text
NAME_LIMIT: Final = 256  # bytes of a key or a tensor's name
DIMENSIONS: Final = 4
AGAIN: Final = "download the file again; if the error stays, its publisher made a mistake"

Value = int | float | bool | str | list[str] | NDArray[np.generic]
_SCALARS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type of tensors: `values` values take `size` bytes."""

    name: str
    values: int
    size: int


KINDS: Final[Mapping[int, TensorType]] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
_OTHERS: Final[Mapping[int, str]] = {
    3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: its shape (rows first), its type, and its place in the file in bytes.

    `expert` is the number of its expert if the file's tensor has those of several."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    offset: int
    size: int
    expert: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[-1] // self.kind.values * self.kind.size


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and the tensors of a file."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]


def read_header(path: Path) -> Header:
    """Read and check a header. Raises ModelError: `bad-gguf`, `truncated`, `unsupported-dtype`."""
    try:
        with open(path, "rb") as file:
            return _HeaderReader(path, file).header()
    except OSError as error:
        raise unreadable(path, error) from None


class _HeaderReader:
    """Reader of a header, which counts the bytes that are left of it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def header(self) -> Header:
        if self._bytes(4) != b"GGUF":
            self._bad("it does not begin with `GGUF`")
        version = self._number("<I")
        if version not in (2, 3):
            self._bad(f"its version is {version}, known are 2 and 3")
        tensors, entries = self._number("<Q"), self._number("<Q")
        if entries > METADATA_LIMIT or tensors > TENSORS_LIMIT:
            self._bad(f"it claims {tensors} tensors and {entries} entries")
        metadata = dict[str, Value]()
        for _ in range(entries):
            key = self._text(NAME_LIMIT)
            if key in metadata:
                self._bad(f"{ascii(key)[:80]} is there twice")
            metadata[key] = self._value(self._number("<I"))
        return Header(metadata, self._tensors(tensors, self._alignment(metadata)))

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", 32)
        if not isinstance(value, int) or not 1 <= value <= 1 << 16 or value & (value - 1):
            self._bad("its alignment is no power of two up to 65,536")
        return value

    def _tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        told = [self._entry() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        found = dict[str, GgufTensor]()
        for name, shape, kind, offset in told:
            if offset % alignment:
                self._bad(f"the tensor {ascii(name)[:80]} is not aligned")
            if name in found:
                self._bad(f"the tensor {ascii(name)[:80]} is there twice")
            size = math.prod(shape) // kind.values * kind.size
            found[name] = GgufTensor(name, shape, kind, start + offset, size)
        self._check_places(found)
        return found

    def _entry(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name, dimensions = self._text(NAME_LIMIT), self._number("<I")
        if not 1 <= dimensions <= DIMENSIONS:
            self._bad(f"the tensor {ascii(name)[:80]} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))[::-1]
        if not all(1 <= each < DIM_LIMIT for each in shape):
            self._bad(f"the shape of {ascii(name)[:80]} is out of range")
        kind = self._kind(name, self._number("<I"))
        if shape[-1] % kind.values:
            self._bad(f"{ascii(name)[:80]} has {shape[-1]} columns, {kind.name} has blocks of "
                      f"{kind.values}")  # fmt: skip
        return name, shape, kind, self._number("<Q")

    def _kind(self, name: str, number: int) -> TensorType:
        if number in KINDS:
            return KINDS[number]
        known = ", ".join(kind.name for kind in KINDS.values())
        raise ModelError(
            "unsupported-dtype",
            f"`{self._path.name}`: {ascii(name)[:80]} has the type "
            f"{_OTHERS.get(number, number)}, supported are {known}",
            hint="use another version of the model, such as Q4_K_M or Q8_0",
        )

    def _check_places(self, tensors: Mapping[str, GgufTensor]) -> None:
        """Raise ModelError if a tensor does not lie within the file, or overlaps another one."""
        end = 0
        for tensor in sorted(tensors.values(), key=lambda each: each.offset):
            if tensor.offset < end:
                self._bad(f"the tensor {ascii(tensor.name)[:80]} overlaps another")
            end = tensor.offset + tensor.size
            if end > self._size:
                raise ModelError(
                    "truncated",
                    f"`{self._path}` is cut off: {ascii(tensor.name)[:80]} ends at byte {end}, "
                    f"the file at {self._size}",
                    hint=AGAIN,
                )

    def _value(self, kind: int) -> Value:
        if kind in _SCALARS:
            (value,) = struct.unpack(_SCALARS[kind], self._bytes(struct.calcsize(_SCALARS[kind])))
            found: int | float | bool = value
            return found
        if kind == _STRING:
            return self._text(TEXT_LIMIT)
        if kind != _ARRAY:
            self._bad(f"it has a value of the unknown type {kind}")
        return self._array(self._number("<I"), self._number("<Q"))

    def _array(self, kind: int, count: int) -> Value:
        """Return an array of texts or numbers. Arrays of arrays are refused."""
        if kind == _STRING:
            if count > ITEMS_LIMIT:
                self._bad(f"it claims an array of {count} texts")
            return [self._text(TEXT_LIMIT) for _ in range(count)]
        if kind not in _SCALARS:
            self._bad(f"it has an array of the type {kind}")
        dtype = np.dtype(_SCALARS[kind].replace("<?", "<u1"))
        data = self._bytes(count * dtype.itemsize)
        return np.frombuffer(data, dtype)

    def _text(self, limit: int) -> str:
        size = self._number("<Q")
        if size > limit:
            self._bad(f"it claims a text of {size} bytes")
        try:
            return self._bytes(size).decode()
        except UnicodeDecodeError:
            self._bad("it has a text that is not UTF-8")

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return int(value)

    def _bytes(self, size: int) -> bytes:
        """Return the next bytes. Compares their number with the limits before it reads them."""
        if self._at + size > HEADER_LIMIT:
            self._bad(f"its header has more than {HEADER_LIMIT} bytes")
        if self._at + size > self._size:
            raise ModelError(
                "truncated", f"`{self._path}` is cut off within its header", hint=AGAIN
            )
        self._at += size
        data = self._file.read(size)
        if len(data) != size:
            raise ModelError("truncated", f"`{self._path}` shrank while it was read", hint=AGAIN)
        return data

    def _bad(self, why: str) -> NoReturn:
        raise ModelError("bad-gguf", f"`{self._path}` is not a valid GGUF file: {why}", hint=AGAIN)
