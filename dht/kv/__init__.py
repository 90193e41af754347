"""KV index: names of KV blocks, and which peer has the longest prefix of a prompt's KV.

Public: `KvIndex`. Imports `records/` and `lookup/`. Spec: docs/spec/kv.md.
"""
