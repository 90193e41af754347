"""Circuits through a third node: the relay service with its limits, and the client of relays.

Public: `RelayService`, `RelayClient`, `RelayBook`, `RelayLimits`, `CircuitByteStream`, `Vouched`.
Imports `dial/`, `host/`, `lane/` and `link/`.
"""
