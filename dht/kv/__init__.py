"""Names of KV blocks, and which peer holds the longest prefix of a prompt (docs/spec/kv.md).

Public: `KvIndex`. Imports `records/` and `kademlia/`.
"""
