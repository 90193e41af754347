"""Model files and precisions: converts what people have (GGUF, AWQ, GPTQ, an Ollama store, a hub)
into a folder that the library imports, and quantises models. Specs: docs/spec/quantised.md,
docs/spec/modelfiles.md.

Everything is converted in a process of its own (`child.py`), because the files are untrusted and
the work takes minutes. `adding.py` is the daemon's part.

Public: `add_model`, `Added`, `Source`, `quantised_name`. Imports `engine/`.
"""
