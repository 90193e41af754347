"""Fields of `config.json` that are common to the Qwen families."""

from dataclasses import replace

from .architecture import Architecture, Experts
from .dense import sliding_layers, with_windows
from .reader import JsonReader


def with_late_windows(arch: Architecture, reader: JsonReader) -> Architecture:
    """Return the architecture with the sliding windows of its upper layers. Raises EngineError."""
    if not reader.flag("use_sliding_window", False):
        return arch
    window = reader.integer("sliding_window", 1, 1 << 30, default=4096, null=0)
    first = reader.integer("max_window_layers", 0, 1 << 10, default=28)
    late = [layer >= first for layer in range(arch.layers)]
    return with_windows(arch, window, sliding_layers(reader, late))


def with_sparse_layers(arch: Architecture, reader: JsonReader, experts: Experts) -> Architecture:
    """Return the architecture with experts in the layers that have them. Raises EngineError."""
    step = reader.integer("decoder_sparse_step", 1, 1 << 10, default=1)
    dense = reader.integers("mlp_only_layers", arch.layers, 0, arch.layers - 1)
    kinds = tuple(
        replace(kind, experts=None if layer in dense or (layer + 1) % step else experts)
        for layer, kind in enumerate(arch.kinds)
    )
    return replace(arch, kinds=kinds)
