"""Tokenizers and chat templates, run in a sandboxed child process because model files are
untrusted.

Public: `TextProcess`, `Detokenizer`, `ChatTurn`, `ModelFiles`, `StopFilter`. Imports `transport/`.
"""
