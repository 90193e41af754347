"""Circuits through a third node: the relay service with its limits, and the client of relays."""
