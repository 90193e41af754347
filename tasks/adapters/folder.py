"""Import of a `peft` folder: adapter_config.json and adapter_model.safetensors.

Nothing in the folder is executed, and pickle files are not opened. Whatever this engine could not
compute exactly is refused by name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from ...dht.content.folder import folder_names, json_file
from ...dht.content.safetensors import Slice, read_header
from ...dht.errors import ModelError, unreadable
from ...transport.host.seam import Files
from ..engine.adapters import (
    MODULES,
    SOURCE_BYTES,
    AdapterTerms,
    Module,
    SourceDType,
    lacking,
    module_shapes,
)
from ..engine.defaults import MAX_RANK
from ..engine.families import Architecture
from .defaults import ADAPTER_BYTES, CONFIG_BYTES, READ_BYTES
from .file import encode_head

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_ROLE: Final = re.compile(
    r"(?:base_model\.model\.)?model\.layers\.(0|[1-9][0-9]{0,3})\.(?:self_attn|mlp)\."
    rf"({'|'.join(MODULES)})\.lora_([AB])(?:\.default)?\.weight"
)
# Options that change what an adapter computes, and the values that mean that they are not used.
_UNUSED: Final[Mapping[str, tuple[object, ...]]] = {
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "fan_in_fan_out": (None, False),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "task_type": (None, "CAUSAL_LM"),
    # Other ways of beginning the training change the weights of the model itself.
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
Pair = tuple[Slice, Slice]  # A, B


@dataclass(frozen=True, slots=True)
class AdapterScan:
    """A checked `peft` folder. `pairs` has the matrices A and B by (layer, module)."""

    rank: int
    alpha: float
    rslora: bool
    dtype: SourceDType
    pairs: Mapping[tuple[int, Module], Pair]

    def terms(self, base: str, arch: Architecture) -> AdapterTerms:
        """Return the terms of the adapter for a model.

        Raises ModelError `bad-adapter` if a tensor does not fit the model.
        """
        modules = tuple(name for name in MODULES if any(m == name for _, m in self.pairs))
        layers = tuple(sorted({layer for layer, _ in self.pairs}))
        if layers[-1] >= arch.layers:
            _bad(f"it changes layer {layers[-1]}, and the model has {arch.layers} layers")
        if lacks := lacking(modules, arch):
            _unsupported(f"an adapter of `{lacks}` for a model of the family {arch.family}")
        shapes = module_shapes(arch)
        for layer in layers:
            for module in modules:
                pair = self.pairs.get((layer, module))
                if pair is None:
                    _bad(f"layer {layer} lacks `{module}`, which other layers have")
                outputs, inputs = shapes[module]
                for part, wanted in zip(
                    pair, ((self.rank, inputs), (outputs, self.rank)), strict=True
                ):
                    if part.shape != wanted:
                        _bad(
                            f"`{module}` of layer {layer} has a matrix of shape "
                            f"{list(part.shape)}, the model and rank {self.rank} need "
                            f"{list(wanted)}"
                        )
        return AdapterTerms(
            base,
            self.rank,
            self.alpha,
            self.rslora,
            self.dtype,
            modules,
            layers,
        )

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(part.size for pair in self.pairs.values() for part in pair)


def scan_folder(files: Files, folder: Path) -> AdapterScan:
    """Check everything that can be checked without the model and without reading the weights.
    Blocking.

    Raises ModelError: `bad-adapter` or `unsupported-adapter`, or what the folder lacks.
    """
    names = folder_names(files, folder)
    if _CONFIG not in names:
        raise ModelError(
            "no-config",
            f"`{folder}` has no {_CONFIG}",
            hint="name a folder that `peft` has saved: `model.save_pretrained(FOLDER)`",
        )
    config = json_file(files, folder / _CONFIG, CONFIG_BYTES)
    rank, alpha, rslora = _settings(config)
    if _WEIGHTS not in names:
        raise ModelError(
            "no-weights",
            f"`{folder}` has no {_WEIGHTS}"
            + (", only a pickle, which can run code" if "adapter_model.bin" in names else ""),
            hint="save it again with `save_pretrained(FOLDER, safe_serialization=True)`",
        )
    pairs, dtype = _pairs(read_header(files, folder / _WEIGHTS))
    scan = AdapterScan(rank, alpha, rslora, dtype, pairs)
    if scan.size > ADAPTER_BYTES:
        _bad(f"it has {scan.size} bytes, the limit is {ADAPTER_BYTES}")
    return scan


def _settings(config: Mapping[str, object]) -> tuple[int, float, bool]:
    """Return (rank, alpha, rslora). Raises ModelError if the config is invalid or unsupported."""
    if config.get("peft_type") != "LORA":
        _unsupported(f"`peft_type` {ascii(config.get('peft_type'))[:40]}; only LORA is")
    for key, values in _UNUSED.items():
        if config.get(key) not in values:
            _unsupported(f"`{key}` {ascii(config[key])[:40]}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        _bad(f"{_CONFIG} has no rank `r` of 1 to {MAX_RANK}")
    if type(alpha) not in (int, float) or not abs(alpha) < 1e6:  # type: ignore[arg-type]
        _bad(f"{_CONFIG} has no number `lora_alpha` below a million")
    rslora = config.get("use_rslora", False)
    if not isinstance(rslora, bool):
        _bad(f"`use_rslora` in {_CONFIG} is not true or false")
    return rank, float(alpha), rslora  # type: ignore[arg-type]


def _pairs(tensors: Mapping[str, Slice]) -> tuple[dict[tuple[int, Module], Pair], SourceDType]:
    """Return the matrices by (layer, module), and their dtype."""
    halves: dict[tuple[int, Module], dict[str, Slice]] = {}
    for role, part in tensors.items():
        found = _ROLE.fullmatch(role)
        if found is None:
            _unsupported(f"the tensor {ascii(role)[:120]}")
        module = next(name for name in MODULES if name == found[2])
        halves.setdefault((int(found[1]), module), {})[found[3]] = part
    dtypes = {part.dtype for part in tensors.values()}
    dtype = next((known for known in SOURCE_BYTES if {known} == dtypes), None)
    if dtype is None:
        _bad(f"its tensors are {', '.join(sorted(dtypes)) or 'missing'}, one of "
             f"{', '.join(SOURCE_BYTES)} is expected for all")  # fmt: skip
    pairs = {}
    for key in sorted(halves, key=lambda key: (key[0], MODULES.index(key[1]))):
        half = halves[key]
        if len(half) != 2:
            _bad(f"`{key[1]}` of layer {key[0]} has only one of the matrices A and B")
        pairs[key] = half["A"], half["B"]
    return pairs, dtype


def file_pieces(files: Files, scan: AdapterScan, terms: AdapterTerms) -> Iterator[bytes]:
    """Yield the adapter file in pieces. Blocking.

    Raises ModelError: `bad-adapter` if a value is not finite, `truncated` or `unreadable`.
    """
    yield encode_head(terms)
    for (layer, module), pair in scan.pairs.items():
        for part in pair:
            for offset in range(0, part.size, READ_BYTES):
                size = min(READ_BYTES, part.size - offset)
                data = _read(files, part, offset, size)
                if not _finite(data, part.dtype):
                    _bad(f"`{module}` of layer {layer} has values that are not finite")
                yield data


def _read(files: Files, part: Slice, offset: int, size: int) -> bytes:
    try:
        data = files.read_range(part.path, part.offset + offset, size)
    except OSError as error:
        raise unreadable(part.path, error) from None
    if len(data) != size:
        raise ModelError("truncated", f"`{part.path}` shrank while it was being read")
    return data


def _finite(data: bytes, dtype: str) -> bool:
    """Return whether all values are finite. `data` is little-endian."""
    if dtype == "BF16":
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return bool(np.isfinite(values).all())
    return bool(np.isfinite(np.frombuffer(data, "<f4" if dtype == "F32" else "<f2")).all())


def _bad(why: str) -> NoReturn:
    raise ModelError(
        "bad-adapter",
        f"the folder is no adapter for this model: {why}",
        hint="use the files as `peft` saved them together, and name the model that it was trained "
        "for: `shoal adapter add FOLDER --model NAME`",
    )


def _unsupported(what: str) -> NoReturn:
    raise ModelError(
        "unsupported-adapter",
        f"shoal cannot compute adapters with {what}",
        hint="supported are plain LoRA and rsLoRA on the projections of attention and MLP; "
        "other kinds can be merged into the model: `merge_and_unload()`",
    )
