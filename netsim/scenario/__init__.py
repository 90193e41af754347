"""Scenarios: simulated experiments that TOML files describe.

Files are validated strictly, then run. `format/` reads the file, `programs/` has the programs that
hosts run, and the neighbouring package `runs/` stores what runs have measured. Public:
`ScenarioRun` (`run.py`), `RunResult` (`result.py`).

Imports `nat/`, `network/`, `population/` and `trace/`.
"""
