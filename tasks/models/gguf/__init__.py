"""GGUF files: a bounded reader of their headers, their quantised blocks, tokenizers and names."""
