"""Kademlia: look-ups by disjoint paths, and publication of records by region (docs/spec/dht.md).

A *region* is the part of the key space around a key whose nodes store the records of this key.
Public: what `service.py` uses. The cores (`table.py`, `lookup.py`, `walk.py`, `recordstore.py`,
`own.py`, `mode.py`) do no I/O. `asking.py`, `searching.py`, `joining.py` and `publishing.py` run
them in trio. Imports `records/`.
"""
