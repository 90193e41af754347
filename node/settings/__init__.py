"""The settings of a node: their keys, the parsers of their values, the file that stores them, and
the code that applies them.

Public: `NodeConfig`, `DataFolder`, `KEYS`, `remember`. Imports only `folder.py`
and `errors.py` of `node/`. Specified in docs/spec/settings.md.
"""
