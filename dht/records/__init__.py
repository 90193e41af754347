"""Signed records, and the key space in which they are stored (docs/spec/records.md). No I/O.

Public: `Key`, `Contact`, `Record` and the bodies by kind. Imports nothing else of `dht/` except
`defaults.py` and `errors.py`.
"""
