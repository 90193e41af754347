"""Which peers hold what: signed records in a Kademlia, content-addressed data, and its transfer.

Imports `transport/` only. Public: `Dht` (`service.py`), `Names`, `Library` and `Blobs`
(`content/`), `Exchange` (`exchange/`), `KvIndex` (`kv/`). A digest is a `str` of 64 lower-case hex
digits (SHA-256), and so is a root. A chunk has 1 MiB. Every error is a `ModelError(code, message,
hint=)`.
"""
