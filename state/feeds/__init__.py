"""An author's signed log of CRDT updates: entries, documents, and the store on disk.

Public: `FeedName`, `Entry`, `Head`, `Feed`, `FeedWriter`, `Committer` (asynchronous access to the
store). Imports nothing else of `state/`. Specs: docs/spec/state.md, docs/spec/store.md.
"""
