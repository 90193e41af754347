"""Publication of this node's own records, region by region (docs/spec/dht.md).

Public: `OwnRecords`, what this node says and when each record must be announced again;
`Publishing`, which announces what is due. The cores (`own.py`, `walk.py`, `parcels.py`) do no I/O.
Imports `records/`, `kademlia/` and `lookup/`.
"""
