"""Parts of `shoal model`: where a model comes from, fetching, quantising and removing.

They may import what a command may. `../model.py` and `../blob.py` use them.
"""
