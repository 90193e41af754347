"""Guesses of what a model will say next, verified several windows at a time. No I/O.

`drafter.py` guesses from what was said before, `controller.py` decides how many guesses are worth
computing, `speculation.py` joins them at the gateway, and `inputs.py` decides at the first stage
what is computed.

Public: `Drafting`, `Speculation`, `Inputs`, `DraftCounts`. Imports only `costs/`.
"""
