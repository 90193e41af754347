"""A manifest without files behind it."""

from shoal.dht.content.manifest import Blob, Manifest, Tensor

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 600,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 20,
}


def small_manifest(vocabulary: int = 20) -> Manifest:
    shapes = {
        "lm_head.weight": (vocabulary, 8),
        "model.embed_tokens.weight": (vocabulary, 8),
        "model.layers.0.input_layernorm.weight": (8,),
        "model.layers.1.input_layernorm.weight": (8,),
        "model.norm.weight": (8,),
    }
    tensors = tuple(
        Tensor((role,), "BF16", shape, tuple(f"{number:02x}{chunk:02x}" * 16 for chunk in range(n)))
        for number, (role, shape) in enumerate(sorted(shapes.items()))
        for n in [-(-2 * shape[0] * (shape[1] if len(shape) > 1 else 1) // 2**20)]
    )
    return Manifest(dict(sorted(CONFIG.items())), {"tokenizer": Blob(3, ("ff" * 32,))}, tensors)
