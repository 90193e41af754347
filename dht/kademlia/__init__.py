"""Kademlia: what a node of the DHT knows about others, asks them and answers (docs/spec/dht.md).

The routing table, the records that this node stores for others, the messages, and the brief links
that carry them. A *region* is the part of the key space around a key whose nodes store the records
of this key. Public: `Table`, `RecordStore`, `DhtHandlers`, `DhtRequests`, `BriefLinks`, `Presence`,
and the messages. `table.py`, `recordstore.py`, `mode.py`, `slots.py` and `messages.py` do no I/O.
Imports `records/`.
"""
