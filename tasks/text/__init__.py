"""Tokenizers and chat templates in a sandboxed child process, because model files are untrusted."""
