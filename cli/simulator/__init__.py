"""Output of `shoal sim`: progress on a terminal, and results as text.

Public: `TerminalDisplay` (`display.py`) and the functions of `words.py`. Imports `netsim/`.
"""
