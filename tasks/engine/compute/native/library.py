"""The kernels of `../kernels`: finds the library, and calls it.

The library is optional. Without it torch computes everything, and a result differs by rounding
only. `choice.py` chooses the set of instructions.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Final

import torch

from .pages import Pages

FLOAT32: Final = 0
BFLOAT16: Final = 1
INT8: Final = 2
INT4: Final = 3
KINDS: Final = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}

VERSION: Final = 2  # raised when the interface changes, or a row gets other bits
_PANEL: Final = 64  # outputs that are packed together (kernels/products.h)


class NoSuchKernels(ValueError):
    """The library has no kernels of this name, or the processor cannot run them."""


class Matrix(ctypes.Structure):
    """A packed matrix, as `kernels/shoal.h` declares it. The other structures are too."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "group", "outputs", "inputs")),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class LayerPointers(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, POINTER(Matrix)) for name in ("qkv", "output", "gate_up", "down")),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
    )


class ModelShape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim")),
        *((name, c_int64) for name in ("intermediate", "slots", "dtype")),
        ("eps", c_double),
        ("layer", POINTER(LayerPointers)),
    )


class PieceRows(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("row", "count", "position", "decode")),
        ("blocks", c_void_p),
    )


class StepRows(ctypes.Structure):
    _fields_ = (
        ("model", POINTER(ModelShape)),
        ("rows", c_int64),
        ("pieces", c_int64),
        ("x", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("piece", POINTER(PieceRows)),
    )


class Attending(ctypes.Structure):
    _fields_ = (
        ("step", POINTER(StepRows)),
        ("layer", c_int64),
        ("queries", c_void_p),
        ("out", c_void_p),
    )


class _Product(ctypes.Structure):
    _fields_ = (
        ("matrix", POINTER(Matrix)),
        ("rows", c_int64),
        ("kind", c_int64),
        ("stride", c_int64),
        ("x", c_void_p),
        ("out", c_void_p),
    )


class Kernels:
    """The loaded library. ctypes releases the interpreter's lock during each call."""

    def __init__(self, path: Path, name: str, threads: int) -> None:
        """Load the library and choose an instruction set (empty: the best one).

        Raises OSError if the library cannot be loaded, NoSuchKernels if the processor lacks the
        instruction set, and ValueError if the library has another version.
        """
        library = ctypes.CDLL(str(path))
        library.shoal_choose.restype = c_void_p
        library.shoal_name.restype = c_char_p
        library.shoal_name.argtypes = (c_void_p,)
        library.shoal_packed_bytes.restype = c_int64
        library.shoal_packed_bytes.argtypes = (c_void_p, *(c_int64,) * 4)
        library.shoal_pack.argtypes = (c_void_p, POINTER(Matrix), *(c_void_p,) * 4)
        library.shoal_product.argtypes = (c_void_p, POINTER(_Product))
        library.shoal_attend.argtypes = (c_void_p, POINTER(Attending))
        library.shoal_step.argtypes = (c_void_p, POINTER(StepRows))
        if library.shoal_version() != VERSION:
            raise ValueError(
                f"the kernels in `{path.name}` are of another version of shoal; in a checkout, "
                "`make setup` builds them"
            )
        self._chosen = library.shoal_choose(name.encode(), c_int(threads))
        if self._chosen is None:
            raise NoSuchKernels(f"this processor has no `{name}` instructions")
        self.name = str(library.shoal_name(self._chosen).decode())
        self.exactness = f"shoal-{self.name}-{VERSION}"
        """The instruction set and the version, for the class of exactness."""
        self._library = library
        self._pages = Pages()

    def pack(
        self, kind: int, group: int, shape: tuple[int, int], parts: Sequence[torch.Tensor]
    ) -> tuple[Matrix, torch.Tensor]:
        """Repack a matrix. `parts` are its values, or its quantised values, scales and minima.

        Returns the matrix without a bias, and its memory, which must live as long.
        """
        outputs, inputs = shape
        size = self._library.shoal_packed_bytes(self._chosen, kind, group, outputs, inputs)
        data = self._pages.take(size)
        matrix = Matrix(kind, group, outputs, inputs, data.data_ptr(), None)
        solid = [part.contiguous() for part in parts]
        pointers = [part.data_ptr() for part in solid] + [None] * (3 - len(solid))
        self._library.shoal_pack(self._chosen, matrix, *pointers, data.data_ptr())
        return matrix, data

    def product(self, matrix: Matrix, x: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply rows with a matrix. `x` and `out` have one of the dtypes in KINDS."""
        where = (x.stride(0), x.data_ptr(), out.data_ptr())
        product = _Product(ctypes.pointer(matrix), len(x), KINDS[x.dtype], *where)
        self._library.shoal_product(self._chosen, product)

    def attend(self, attending: Attending) -> None:
        """Compute the attention of one step with one layer."""
        self._library.shoal_attend(self._chosen, attending)

    def step(self, step: StepRows) -> None:
        """Compute a step through all layers. The results replace the rows of `step`."""
        self._library.shoal_step(self._chosen, step)


class NativeLinear:
    """A product `x W^T + b` with a packed matrix."""

    def __init__(
        self, kernels: Kernels, matrix: Matrix, data: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """`data` is the memory of the matrix."""
        self.matrix = matrix
        self.kernels = kernels
        self.bias = None if bias is None else bias.float().contiguous()
        self.data = data
        if self.bias is not None:
            matrix.bias = self.bias.data_ptr()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.matrix.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = rows.new_empty(len(rows), self.matrix.outputs)
        if len(rows):
            self.kernels.product(self.matrix, rows, out)
        return out.view(*x.shape[:-1], self.matrix.outputs)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return rows of a matrix in float32 or bfloat16 by their numbers: an embedding."""
        panel, lane = numbers // _PANEL, numbers % _PANEL
        kind, inputs = self.matrix.kind, self.matrix.inputs
        padded = -(-inputs // 32) * 32
        if kind == FLOAT32:
            table = self.data.view(torch.float32).view(-1, padded, _PANEL)
            return table[panel, :, lane][:, :inputs]
        pairs = self.data.view(torch.bfloat16).view(-1, padded // 2, _PANEL, 2)
        return pairs[panel, :, lane].reshape(len(numbers), padded)[:, :inputs]


def dense(kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None) -> NativeLinear:
    """Return the product with a matrix in float32 or bfloat16."""
    shape = (int(weight.shape[0]), int(weight.shape[1]))
    return NativeLinear(kernels, *kernels.pack(KINDS[weight.dtype], 32, shape, [weight]), bias)
