"""The settings of a node: their keys, the parsers of their values, the file that stores them, and
the code that applies them.

Public: `NodeConfig`, `DataFolder`, `KEYS`, `remember`. Imports `folder.py` and `errors.py` of
`node/`, and the messages of `control/`. Specified in docs/spec/settings.md.
"""
