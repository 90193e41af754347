"""Circuits through a third node: the relay service, its limits, and the pipe at either end."""
