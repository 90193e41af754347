"""Tokenizers and chat templates in a limited child process: model folders are strangers' input."""
