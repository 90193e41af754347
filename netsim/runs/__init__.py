"""The work behind `shoal sim`: runs in folders, sweeps over seeds, replays, CSV files.

It works outside simulated time. The commands parse options, call it and print its typed results.
Public: `run` (`run.py`), `sweep` (`sweep.py`), `replay` and `difference` (`replay.py`), `export`
(`export.py`), `RunFolder` (`folder.py`). Errors are those of `netsim/errors.py`.
"""
