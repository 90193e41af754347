"""Checks a model's `config.json` and its tensors, before its weights are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import EngineError
from ..interface import Parts
from ..layouts import FLOATS, layouts_of
from .architecture import Architecture
from .family import Family, families
from .reader import JsonReader, quant_method, unsupported
from .shapes import HEAD, stored_tensors

Config = Mapping[str, object]

MOST_WIDE = 1 << 18
"""Values of all heads together, of one position; models of 400 billion weights have 1 << 14."""


def architecture(config: Config) -> Architecture:
    """Check a config.json and return its architecture.

    Raises EngineError `bad-config` if a value is invalid, and `unsupported-architecture` if this
    engine cannot compute the model.
    """
    family = _family(config)
    layouts = FLOATS if quant_method(config) in family.quantised else layouts_of(config)
    checked = replace(family.read(JsonReader(config)), layouts=layouts)
    _check_heads(checked)
    return checked


def _family(config: Config) -> Family:
    """Return the family of the model. Raises EngineError if the config names none or an unsupported
    one."""
    names = config.get("architectures")
    if names is None and isinstance(config.get("model_type"), str):
        for family in families().values():
            if family.name == config["model_type"]:
                return family
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise EngineError("bad-config", "config.json names no architecture (`architectures`)")
    if names[0] not in families():
        raise unsupported(f"`{names[0][:80]}`")
    return families()[names[0]]


def _check_heads(arch: Architecture) -> None:
    if arch.heads % arch.kv_heads:
        raise EngineError(
            "bad-config",
            f"{arch.heads} attention heads cannot share {arch.kv_heads} key-value heads",
        )
    if arch.head_dim < 2:  # more heads than hidden values, and no `head_dim`
        raise EngineError("bad-config", f"{arch.heads} heads of no values cannot be computed")
    if arch.head_dim % 2:
        raise EngineError("bad-config", f"head_dim {arch.head_dim} is odd, rotary needs pairs")
    wide = arch.heads * arch.head_dim
    if wide > MOST_WIDE:  # intermediate values that the memory of a shard does not count
        raise EngineError("bad-config", f"the heads have {wide} values, more than {MOST_WIDE}")


def check_model(config: Config) -> Callable[[Mapping[str, Sequence[int]]], None]:
    """Check a model before its weights are read.

    The config is checked now. The returned function checks that all tensors are there, and their
    shapes, by parameter name. Both raise EngineError if the model is invalid or unsupported.
    """
    arch = architecture(config)

    def check_shapes(shapes: Mapping[str, Sequence[int]]) -> None:
        wanted = stored_tensors(arch, Parts(True, 0, arch.layers, True))
        _check_complete([role for role in wanted if role not in shapes])
        for role, (_, shape) in wanted.items():
            if tuple(shapes[role]) != shape:
                raise EngineError(
                    "bad-tensor",
                    f"`{role}` has the shape {list(shapes[role])}, "
                    f"config.json makes it {list(shape)}",
                    hint="the folder's config.json belongs to another model: download it again",
                )

    return check_shapes


def _check_complete(absent: Sequence[str]) -> None:
    """Raise EngineError `missing-tensor` if tensors are absent."""
    if not absent:
        return
    hint = "download the folder again; config.json and the weights do not match"
    if absent == [HEAD]:
        hint = "if the model ties its embeddings, config.json needs `tie_word_embeddings: true`"
    raise EngineError(
        "missing-tensor",
        f"the weights lack {len(absent)} tensors that config.json declares, first `{absent[0]}`",
        hint=hint,
    )
