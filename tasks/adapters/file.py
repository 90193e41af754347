"""File format of an adapter: a head, and then its tensors. No I/O. Spec: docs/spec/adapter.md.

The file is stored as a blob, whose root identifies the adapter. Files may come from strangers.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...dht.errors import ModelError
from ...transport.decoding import decode, typed
from ...transport.errors import Undecodable
from ...transport.message import Row, pack
from ..engine.adapters import AdapterTerms, SourceDType, lacking
from ..engine.families import Architecture
from .defaults import HEAD_BYTES, HEAD_ITEMS

FORMAT: Final = "shoal-adapter/1"
_PREFIX: Final = struct.Struct("!I")


class _Head(Row, frozen=True):
    format: str
    terms: AdapterTerms

    def check(self) -> None:
        """Raise ValueError if the format is another one, or the terms are inconsistent."""
        if self.format != FORMAT:
            raise ValueError(f"expected the format `{FORMAT}`")
        self.terms.check()


@dataclass(frozen=True, slots=True)
class AdapterHead:
    """Terms of an adapter, the byte at which its tensors begin, and the bytes of the file."""

    terms: AdapterTerms
    start: int
    size: int

    def check_fits(self, root: str, arch: Architecture) -> None:
        """Raise ModelError `bad-adapter` unless the adapter belongs to a model and is complete.

        `root` is the model's root.
        """
        if self.terms.base != root:
            raise bad(f"it belongs to another model, whose root begins with {self.terms.base[:16]}")
        if self.terms.layers[-1] >= arch.layers:
            raise bad(f"it changes layer {self.terms.layers[-1]} of {arch.layers}")
        if lacks := lacking(self.terms.modules, arch):
            raise bad(f"it changes `{lacks}`, which the model does not have")
        wanted = self.start + len(self.terms.layers) * self.terms.layer_bytes(arch)
        if wanted != self.size:
            raise bad(f"its tensors of rank {self.terms.rank} do not fit the model")

    def range_of(self, arch: Architecture, start: int, stop: int) -> tuple[int, int]:
        """Return the bytes (first, after last) of the tensors of the layers start:stop."""
        before, count = self.terms.place(start, stop)
        each = self.terms.layer_bytes(arch)
        return self.start + before * each, self.start + (before + count) * each


def encode_head(terms: AdapterTerms) -> bytes:
    """Return the bytes before the tensors."""
    data = pack(_Head(FORMAT, terms))
    return _PREFIX.pack(len(data)) + data


def read_head(data: bytes, size: int) -> AdapterHead:
    """Decode the head of an adapter file of `size` bytes, from its first bytes.

    Raises ModelError `bad-adapter` if it is malformed.
    """
    if len(data) < _PREFIX.size:
        raise bad("it is cut off")
    (length,) = _PREFIX.unpack_from(data)
    end = _PREFIX.size + length
    if length > HEAD_BYTES or end > len(data):
        raise bad("it has no head of an adapter")
    try:
        fields = decode(data[_PREFIX.size : end], limit=HEAD_BYTES, items=HEAD_ITEMS)
        terms = typed(_Head, fields).terms
    except Undecodable as error:
        raise bad(str(error)) from None
    if encode_head(terms) != data[:end]:
        raise bad("its bytes are not canonical")
    return AdapterHead(terms, end, size)


def read_values(data: bytes, dtype: SourceDType) -> NDArray[np.float32]:
    """Return the values of tensors as float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)


def bad(why: str) -> ModelError:
    """Return the error for a file that is no valid adapter, or does not fit its model."""
    return ModelError(
        "bad-adapter",
        f"the adapter cannot be used: {why}",
        hint="`shoal adapter list` shows the adapters here, and the models that they belong to",
    )
