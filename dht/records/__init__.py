"""Signed records and the key space they lie in (docs/spec/records.md). No I/O.

Public: `Key`, `Contact`, `Record` and the bodies by kind. Imports nothing else of `dht/`.
"""
