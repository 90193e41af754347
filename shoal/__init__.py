"""shoal: volunteers' computers as one compute network, with no one in charge."""

__version__ = "0.1.0"
