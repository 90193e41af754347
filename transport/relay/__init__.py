"""Circuits through a third node: the service, its limits, and the pipe at either end."""
