"""Parts of `shoal model`: where a model comes from, fetching, quantising and removing.

Imports what a command may: `simulator/` and the modules of `cli/`. `../model.py` and `../blob.py`
use them.

Public: `report_added`, `asked`, `dropped`, `remove_blob`.
"""
