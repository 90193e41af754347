"""Signed records and the space of their keys (docs/spec/records.md). No I/O.

Public: `Key`, `Contact`, `Record` and the bodies by kind. Imports nothing else of `dht/`.
"""
