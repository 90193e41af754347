"""The file of a scenario: its tables, keys and units, and the parser that checks them. No I/O.

Public: `parse` (`parse.py`), the dataclasses of `tables.py` and `actions.py`, and the names of
metrics (`metrics.py`).
"""
