"""Converts AWQ and GPTQ folders with 4 bits to the layout `int4/32`.

A projection X of K inputs and N outputs is stored as `X.qweight`, `X.qzeros` (both I32, 8 values in
each) and `X.scales` (float16, K/group x N); a weight is `scale * (q - zero)`. AWQ packs outputs in
the order 0, 2, 4, 6, 1, 3, 5, 7, and GPTQ packs inputs. Folders are untrusted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...dht.content.folder import folder_names, folder_texts, folder_weights, json_file
from ...dht.content.manifest import plain_config
from ...dht.content.safetensors import Slice
from ...dht.defaults import CONFIG_LIMIT, ITEM_BYTES
from ...dht.errors import ModelError
from ...transport.host.seam import Files
from ..engine.layouts import INT4
from .adding import PACKED
from .library import file_name
from .output import ROWS_VALUES, Converted, Output, floats_of
from .quantise import Parts, packed_levels

MOST: Final = 1 << 30  # bytes of the values of one projection
_DTYPES: Final = {**ITEM_BYTES, "I32": 4}
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
_PACKED: Final = (".qweight", ".qzeros", ".scales", ".g_idx")

Levels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Method:
    """How a folder is quantised. `group` is the number of inputs with the same scale, 0: all."""

    name: Literal["awq", "gptq"]
    group: int
    added: int  # to what is stored as zero


def quantised_by(config: Mapping[str, object]) -> str:
    """Return the method by which a folder is quantised, or an empty text."""
    told = config.get("quantization_config")
    method = told.get("quant_method") if isinstance(told, Mapping) else None
    return method if isinstance(method, str) and method in PACKED else ""


def packed_model(files: Files, folder: Path) -> Converted:
    """Return the model in an AWQ or GPTQ folder. Raises ModelError if it is invalid."""
    names = folder_names(files, folder)
    config = plain_config(json_file(files, folder / "config.json", CONFIG_LIMIT))
    method = _method(config.pop("quantization_config"))
    weights = folder_weights(files, folder, names, _DTYPES)
    texts = folder_texts(files, folder, names)
    outputs = []
    for name, part in weights.items():
        base = name.removesuffix(".qweight")
        if base != name:
            outputs.append(_projection(files, weights, base, method))
        elif not name.endswith(_PACKED) and not _is_empty_bias(files, name, part):
            outputs.append(_plain(files, name, part))
    packed = sum(output.layout is not None for output in outputs)
    notes = (f"{method.name}: {packed} matrices, computed natively as {INT4.name}",)
    return Converted(config, {file_name(key): data for key, data in texts.items()}, outputs, notes)


def _is_empty_bias(files: Files, name: str, part: Slice) -> bool:
    """Return whether a tensor is a bias of zeros, which GPTQ adds to every projection."""
    is_bias = name.endswith("_proj.bias") and len(part.shape) == 1 and part.size < 1 << 24
    if not is_bias or part.dtype == "I32":
        return False
    return not floats_of(files.read_range(part.path, part.offset, part.size), part.dtype).any()


def _method(told: object) -> Method:
    """Check the `quantization_config`. Raises ModelError `unsupported-quantization`."""
    if not isinstance(told, Mapping):
        _unsupported("no quantisation")
    name = told.get("quant_method")
    bits = told.get("bits", told.get("w_bit"))
    group = told.get("group_size", told.get("q_group_size"))
    if bits != 4:
        _unsupported(f"{ascii(bits)[:20]} bits")
    if not isinstance(group, int) or (group != -1 and (group < 32 or group % 32)):
        _unsupported(f"groups of {ascii(group)[:20]}")
    if name == "awq":
        if str(told.get("version", "gemm")).lower() != "gemm":
            _unsupported(f"AWQ of the version {ascii(told.get('version'))[:20]}")
        return Method("awq", max(group, 0), 0)
    if told.get("desc_act", False):
        _unsupported("GPTQ with act-order (`desc_act`)")
    return Method("gptq", max(group, 0), 0 if told.get("checkpoint_format") == "gptq_v2" else 1)


def _unsupported(what: str) -> NoReturn:
    raise ModelError(
        "unsupported-quantization",
        f"{what} cannot be converted: supported are AWQ (gemm) and GPTQ without act-order, with 4 "
        "bits and groups of a multiple of 32",
        hint="use the unquantised model and `shoal model quantize`, or a GGUF version",
    )


def _plain(files: Files, name: str, part: Slice) -> Output:
    if part.dtype not in ("BF16", "F16", "F32"):
        _unsupported(f"the tensor {ascii(name)[:80]} of {part.dtype}")

    def pieces() -> Iterator[dict[str, bytes]]:
        for offset in range(0, part.size, ROWS_VALUES):
            size = min(ROWS_VALUES, part.size - offset)
            yield {"": files.read_range(part.path, part.offset + offset, size)}

    return Output(name, part.shape, None, part.dtype, pieces)


def _projection(files: Files, weights: Mapping[str, Slice], base: str, method: Method) -> Output:
    """Return how a projection is stored. Raises ModelError if its tensors do not fit together."""
    parts = {end: weights.get(base + end) for end in (".qweight", ".qzeros", ".scales")}
    qweight, qzeros, scales = parts.values()
    if qweight is None or qzeros is None or scales is None:
        raise ModelError(
            "missing-tensor",
            f"{ascii(base)[:80]} needs `qweight`, `qzeros` and `scales`",
            hint="download the folder again",
        )
    rows, columns = _shape(qweight, method)
    group = method.group or columns
    groups = columns // group
    fits = (
        columns % 32 == 0
        and columns % group == 0
        and rows % 8 == 0
        and rows * columns <= MOST
        and (qzeros.dtype, qzeros.shape) == ("I32", (groups, rows // 8))
        and (scales.dtype, scales.shape) == ("F16", (groups, rows))
    )
    if not fits:
        raise ModelError(
            "bad-tensor",
            f"the tensors of {ascii(base)[:80]} do not have the shapes of {rows} x {columns} in "
            f"groups of {group}",
            hint="the folder's config.json belongs to another model: download it again",
        )
    order = weights.get(f"{base}.g_idx")
    pieces = partial(_pieces, files, (qweight, qzeros, scales), order, method)
    return Output(f"{base}.weight", (rows, columns), INT4, "", pieces)


def _shape(qweight: Slice, method: Method) -> tuple[int, int]:
    """Return outputs and inputs of a projection."""
    if qweight.dtype != "I32" or len(qweight.shape) != 2:
        _unsupported(f"weights of {qweight.dtype} in {len(qweight.shape)} dimensions")
    first, second = qweight.shape
    return (8 * second, first) if method.name == "awq" else (second, 8 * first)


def _pieces(
    files: Files, parts: tuple[Slice, Slice, Slice], order: Slice | None, method: Method
) -> Iterator[Parts]:
    rows, columns = _shape(parts[0], method)
    group = method.group or columns
    _check_order(files, order, group, columns)
    qweight, qzeros, scales = (
        files.read_range(each.path, each.offset, each.size) for each in parts
    )
    outputs = _AWQ_ORDER if method.name == "awq" else tuple(range(8))
    zeros = _unpacked(qzeros, rows // 8, outputs)
    zeros = ((zeros + method.added) & 15).astype(np.uint8)
    if method.name == "awq":
        levels = _unpacked(qweight, rows // 8, outputs).T
    else:
        words = np.frombuffer(qweight, "<u4").reshape(columns // 8, 1, rows)
        shifts = 4 * np.arange(8, dtype=np.uint32).reshape(1, 8, 1)
        levels = ((words >> shifts) & 15).astype(np.uint8).reshape(columns, rows).T
    scale = np.frombuffer(scales, "<f2").reshape(-1, rows).T
    minimum = (-scale.astype(np.float32) * zeros.T).astype(np.float16)
    if not (np.isfinite(scale).all() and np.isfinite(minimum).all()):
        raise ModelError(
            "bad-tensor", "a projection has scales that are not finite",
            hint="download the folder again",
        )  # fmt: skip
    yield {
        "": packed_levels(np.ascontiguousarray(levels).reshape(-1, 32)).reshape(rows, -1),
        ".scale": np.repeat(scale, group // 32, 1),
        ".minimum": np.repeat(minimum, group // 32, 1),
    }


def _check_order(files: Files, order: Slice | None, group: int, columns: int) -> None:
    """Raise ModelError if the groups are not consecutive inputs (act-order)."""
    if order is None:
        return
    if order.dtype != "I32" or order.shape != (columns,):
        _unsupported("a `g_idx` of another shape")
    found = np.frombuffer(files.read_range(order.path, order.offset, order.size), "<i4")
    if not np.array_equal(found, np.arange(columns) // group):
        _unsupported("GPTQ with act-order (`g_idx`)")


def _unpacked(data: bytes, words: int, order: tuple[int, ...]) -> Levels:
    """Return the 8 values of each word, in rows of `words` words. Nibble i has column order[i]."""
    packed = np.frombuffer(data, "<u4").reshape(-1, words)
    found = np.empty((len(packed), words, 8), np.uint8)
    for nibble, column in enumerate(order):
        found[:, :, column] = (packed >> np.uint32(4 * nibble)) & 15
    return found.reshape(len(packed), -1)
