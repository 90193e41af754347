"""The implementation of `shoal sim`: runs stored in folders, sweeps over seeds, replays, CSV files.

This package works outside simulated time. The commands parse options, call it, and print its typed
results. Public: `run` (`run.py`), `sweep` (`sweep.py`), `replay` and `difference` (`replay.py`),
`export` (`export.py`), `RunFolder` (`folder.py`). Errors are those of `netsim/errors.py`.

Imports `determinism/`, `netns/`, `network/`, `report/`, `scenario/` and `trace/`.
"""
