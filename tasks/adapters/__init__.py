"""LoRA adapters as content: their file format, import from `peft` folders, names, and delivery to
the engine.

Public: `Adapters` (adding, names, look-up), `AdapterFiles` (fetching). Spec: docs/spec/adapter.md.
Imports `engine/`, `inference/` and `placement/`.
"""
