"""Tokenizers and chat templates, run in a limited child process: model folders are strangers' input."""
