"""Hidden states on a link: their packed layout (`layout.py`), and the functions that pack and
unpack them in the worker (`packing.py`)."""
