"""Looking up, storing and publishing records: look-ups by disjoint paths, publication by region
(docs/spec/dht.md).

Public: what `service.py` puts together. The cores (`table.py`, `lookup.py`, `walk.py`,
`recordstore.py`, `own.py`, `mode.py`) have no I/O; `asking.py`, `searching.py`, `joining.py` and
`publishing.py` are their shells. Imports `records/`.
"""
