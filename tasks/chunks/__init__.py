"""KV chunks: what one node has computed of a prompt, fetched by another instead of computed again.

Public: `ChunkConnector` (what a stage uses), `ChunkProvider` (serves parts of KV), `worthwhile`
(the choice between fetching and computing first). Imports `engine/`, `costs/` and `dht/kv`. Spec:
docs/spec/kv.md.
"""
