"""Checks a model's `config.json`, and says which tensors it has and what memory they take.

The functions and types named here are what the rest of shoal uses. A model that this engine cannot
compute exactly is refused. Does not import torch, because the daemon uses this package too.
"""

from .architecture import Activation, Architecture, Experts, LayerKind, Names, Rope, RopeKind
from .config import Config, architecture, check_model
from .family import Family, families
from .matrix import Supported, supported
from .shapes import DTYPE_BYTES, check_parts, kv_token_bytes, tensor_shapes, weight_bytes

__all__ = [
    "DTYPE_BYTES",
    "Activation",
    "Architecture",
    "Config",
    "Experts",
    "Family",
    "LayerKind",
    "Names",
    "Rope",
    "RopeKind",
    "Supported",
    "architecture",
    "check_model",
    "check_parts",
    "families",
    "kv_token_bytes",
    "supported",
    "tensor_shapes",
    "weight_bytes",
]
