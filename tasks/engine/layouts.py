"""Layouts of quantised weights. Spec: docs/spec/quantised.md. Does not import torch.

A weight of N rows and K columns is stored in groups of `group` columns. `int8` has one signed byte
and `int4` half a byte for each value; each group has a scale, and in `int4` also a minimum.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from .errors import EngineError

Precision = Literal["int8", "int4"]
Shape = tuple[int, ...]

METHOD: Final = "shoal"
"""The value of `quant_method` in the `quantization_config` of a quantised model."""
MXFP4_ENDS: Final = ("_blocks", "_scales")  # of the names of tensors of bytes in MXFP4
PLAIN: Final = "plain"
MOST_EXCEPTIONS: Final = 1 << 16  # weights whose layout differs from that of the others

_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the values of a weight are stored: the precision, and the columns of a group."""

    precision: Precision
    group: int

    @property
    def name(self) -> str:
        return f"{self.precision}/{self.group}"

    def stored(self, role: str, shape: Shape) -> dict[str, tuple[str, Shape]]:
        """Return the dtype (a safetensors name) and shape of each tensor that stores a weight, by
        role. The weight has the shape (rows, columns)."""
        rows, columns = shape
        groups = (rows, columns // self.group)
        if self.precision == "int8":
            return {role: ("I8", shape), f"{role}.scale": ("F16", groups)}
        return {
            role: ("U8", (rows, columns // 2)),
            f"{role}.scale": ("F16", groups),
            f"{role}.minimum": ("F16", groups),
        }

    def bytes(self, shape: Shape) -> int:
        """Return the bytes that store a weight of the shape (rows, columns)."""
        rows, columns = shape
        groups = rows * columns // self.group
        if self.precision == "int8":
            return rows * columns + 2 * groups
        return rows * columns // 2 + 4 * groups

    def fits(self, shape: Shape) -> bool:
        """Return whether a weight of this shape can be stored in this layout."""
        return len(shape) == 2 and shape[1] % self.group == 0


INT8: Final = Layout("int8", 32)
INT8_SMALL: Final = Layout("int8", 16)
INT4: Final = Layout("int4", 32)
LAYOUTS: Final[Mapping[str, Layout]] = {each.name: each for each in (INT8, INT8_SMALL, INT4)}


@dataclass(frozen=True)
class Layouts:
    """Layouts of a model's weights: one for all, and those of the weights that differ from it.

    Norms and biases are never quantised. None stands for a weight that is stored as floats.
    """

    default: Layout | None = None
    others: Mapping[str, Layout | None] = field(default_factory=dict)

    def of(self, role: str, shape: Shape) -> Layout | None:
        """Return the layout of a parameter, or None if it is stored as floats.

        Raises EngineError `bad-config` if the parameter cannot have its layout.
        """
        if len(shape) != 2 or not role.endswith(".weight"):
            return None
        layout = self.others.get(role.removesuffix(".weight"), self.default)
        if layout is not None and not layout.fits(shape):
            _bad(f"`{role}` has {shape[1]} columns, which are no groups of {layout.group}")
        return layout

    def stored(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[str | None, Shape]]:
        """Return the tensors that store these parameters, by role: dtype and shape. The dtype is
        None if it may be any float dtype."""
        found: dict[str, tuple[str | None, Shape]] = {}
        for role, shape in shapes.items():
            layout = self.of(role, shape)
            plain = {role: ("U8" if role.endswith(MXFP4_ENDS) else None, shape)}
            found |= plain if layout is None else layout.stored(role, shape)
        return found

    @property
    def precision(self) -> str:
        """The layouts in use, for a class of exactness: `int4`, `int4+int8`, or nothing."""
        used = {each.precision for each in (self.default, *self.others.values()) if each}
        return "+".join(sorted(used))

    @property
    def is_mixed(self) -> bool:
        """Whether the layers may need different amounts of memory."""
        return bool(self.others)

    def config(self) -> dict[str, object]:
        """Return the `quantization_config` that `layouts_of` reads."""
        return {
            "quant_method": METHOD,
            "layout": _named(self.default),
            "others": {module: _named(each) for module, each in sorted(self.others.items())},
        }


FLOATS: Final = Layouts()
"""Layouts of a model without quantised weights."""


def fitting(shapes: Mapping[str, Shape], layout: Layout, kept: Iterable[str] = ()) -> Layouts:
    """Return the layouts with which all matrices have a layout, except those that it does not fit
    and those in `kept`."""
    plain = set(kept)
    others = {
        role.removesuffix(".weight"): None
        for role, shape in shapes.items()
        if len(shape) == 2
        and role.endswith(".weight")
        and (role in plain or not layout.fits(shape))
    }
    return Layouts(layout, others)


def layouts_of(config: Mapping[str, object]) -> Layouts:
    """Return the layouts that a config.json states.

    Raises EngineError `unsupported-architecture` if the weights are quantised in another way, and
    `bad-config` if the statement is malformed.
    """
    told = config.get("quantization_config")
    if told is None:
        return FLOATS
    if not isinstance(told, Mapping) or told.get("quant_method") != METHOD:
        method = told.get("quant_method") if isinstance(told, Mapping) else told
        raise EngineError(
            "unsupported-architecture",
            f"this engine cannot compute weights that are quantised by {str(method)[:40]!r}",
            hint="use the unquantised model and `shoal model quantize`, or a GGUF, AWQ or GPTQ "
            "version with 4 bits",
        )
    others = told.get("others", {})
    if not isinstance(others, Mapping) or len(others) > MOST_EXCEPTIONS:
        _bad("`others` is not an object of moderate size")
    return Layouts(_layout(told.get("layout")), dict(_exceptions(others)))


def _exceptions(others: Mapping[object, object]) -> Iterator[tuple[str, Layout | None]]:
    for module, name in others.items():
        if not isinstance(module, str) or not _MODULE.fullmatch(module):
            _bad("`others` has a key that is not the name of a module")
        yield module, _layout(name)


def _layout(name: object) -> Layout | None:
    if name == PLAIN:
        return None
    if not isinstance(name, str) or name not in LAYOUTS:
        _bad(f"{ascii(name)[:40]} is none of {', '.join((PLAIN, *LAYOUTS))}")
    return LAYOUTS[name]


def _named(layout: Layout | None) -> str:
    return PLAIN if layout is None else layout.name


def _bad(problem: str) -> NoReturn:
    raise EngineError("bad-config", f"in config.json's `quantization_config`, {problem}")
