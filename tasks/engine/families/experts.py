"""Fields of `config.json` that are common to models with experts."""

from typing import Final

from .architecture import ExpertNames, Experts
from .reader import JsonReader

MOST_EXPERTS: Final = 1 << 15
"""Most experts of all layers together: a config of a few bytes must not ask for more tensors."""


def read_experts(reader: JsonReader, wide_key: str, *, active: int, names: ExpertNames) -> Experts:
    """Return the experts of each layer. `active` is the default of `num_experts_per_tok`.

    `wide_key` names the intermediate size of an expert. Raises EngineError.
    """
    layers = reader.integer("num_hidden_layers", 1, 1 << 10)
    # transformers writes the number of experts under either name.
    key = "num_experts" if reader.values.get("num_local_experts") is None else "num_local_experts"
    count = reader.integer(key, 1, MOST_EXPERTS // layers)
    return Experts(
        count,
        reader.integer("num_experts_per_tok", 1, count, default=active),
        reader.integer(wide_key, 1, 1 << 20),
        names=names,
    )
