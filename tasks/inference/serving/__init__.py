"""The parts of a stage: what it takes in, what it sends on, and whom it dials.

`Stage` in `../stage.py` puts them together.
"""
