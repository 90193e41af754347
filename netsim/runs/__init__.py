"""What a person does with scenarios: runs in folders, sweeps over seeds, replays, CSV files.

Runs outside simulated time; `shoal sim` parses options, calls this and prints what it returns.
Public: `run` (`run.py`), `sweep` (`sweep.py`), `replay` and `difference` (`replay.py`), `export`
(`export.py`), `RunFolder` (`folder.py`). Errors are those of `netsim/errors.py`.
"""
