"""The DHT (a Kademlia), and the transfer of content between peers.

Signed records in the DHT say which peer has what. Content is addressed by its digest.

Imports `transport/` only. Public: `Dht` (`service.py`), `NameResolver`, `Library` and `Blobs`
(`content/`), `ChunkExchange` (`exchange/`), `KvIndex` (`kv/`). A digest is a `str` of 64 lower-case
hex digits (SHA-256). A root is the digest that identifies a model or a blob. A chunk has 1 MiB, or
less if it is the last one of its object. Every error about content is a `ModelError(code, message,
hint=)`, and every error about records or look-ups is a `DhtError(code, message)`.
"""
