"""Content on this node's disk: manifests, chunks, models and blobs, the quota and the scrub.

Public: `Library`, `Blobs`, `Manifest`, `ChunkStore`, `Quota`. Imports nothing else of `dht/`.
Blocking: call it through `host.offload`. Specs: docs/spec/model.md, docs/spec/blob.md.
"""
