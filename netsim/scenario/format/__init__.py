"""The format of scenario files: the tables, keys and units, and the parser that checks them.

Nothing here does I/O. Public: `parse` (`parse.py`), the dataclasses of `tables.py` and
`actions.py`, and the names of metrics (`metrics.py`).

Imports `nat/`, `network/`, `population/` and `programs/`.
"""
