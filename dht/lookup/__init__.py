"""Look-ups: find records, or the nodes of a region, over disjoint paths (docs/spec/dht.md).

Public: `Searching` runs a `Lookup` in trio and returns what it found; `Joining` fills the routing
table by look-ups; `DhtClient` is what both have in common. The cores (`lookup.py`, `candidate.py`,
`foundrecords.py`, `cells.py`) do no I/O. Imports `records/` and `kademlia/`.
"""
