"""Hidden states on a link: their packed layout (`layout.py`), and the functions that pack and
unpack them in the worker (`packing.py`).

Public: `Activations`, `packed_bytes`, `pack`, `unpack`. Imports only the modules at the top of the
folders that contain it.
"""
