"""An author's signed log of CRDT updates: entries, documents, and the store on disk.

Public: `FeedName`, `Entry`, `Head`, `Feed`, `Writer`, `Keeper` (the store beside the event loop).
Imports nothing else of `state/`. Specs: docs/spec/state.md, docs/spec/store.md.
"""
