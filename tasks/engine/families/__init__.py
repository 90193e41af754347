"""Checks a model's `config.json`, and says which tensors it has and what memory they take.

Public: the functions and types named here. A model that this engine cannot compute exactly is
refused. Imports only constants and errors of the engine, and no torch, because the daemon uses this
package too.
"""

from .architecture import (
    Activation,
    Architecture,
    Experts,
    LayerKind,
    Names,
    Recurrent,
    Rope,
    RopeKind,
)
from .config import Config, architecture, check_model
from .family import Family, families
from .matrix import Supported, supported
from .shapes import (
    DTYPE_BYTES,
    check_parts,
    kv_room,
    kv_token_bytes,
    state_bytes,
    tensor_shapes,
    weight_bytes,
)

__all__ = [
    "DTYPE_BYTES",
    "Activation",
    "Architecture",
    "Config",
    "Experts",
    "Family",
    "LayerKind",
    "Names",
    "Recurrent",
    "Rope",
    "RopeKind",
    "Supported",
    "architecture",
    "check_model",
    "check_parts",
    "families",
    "kv_room",
    "kv_token_bytes",
    "state_bytes",
    "supported",
    "tensor_shapes",
    "weight_bytes",
]
