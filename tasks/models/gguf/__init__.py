"""GGUF files: a bounded reader of their headers, their quantised blocks, tokenizers and names.

Public: `gguf_model`. Imports `engine/` and `dht/`.
"""
