"""shoal: volunteers' computers run language models together, without a central server."""

__version__ = "0.1.0"
