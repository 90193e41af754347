"""The settings of a node: their keys, the readers of their values, the file that keeps them, and
applying them.

Public: `NodeConfig`, `DataFolder`, `KEYS`, `remember`. Imports the folder and the errors of
`node/`. Spec: docs/spec/settings.md.
"""
