"""Content on this node's disk: manifests, chunks, models and blobs, the quota and the scrub.

Public: `Library`, `Blobs`, `Manifest`, `ChunkStore`, `Quota`. Imports nothing else of `dht/` except
`defaults.py` and `errors.py`. Most functions that are not `async` block: call them through
`Host.offload`. Specs: docs/spec/model.md, docs/spec/blob.md.
"""
