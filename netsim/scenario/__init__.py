"""Scenarios: experiments as TOML files, which are validated strictly and run.

`format/` reads the file, `programs/` has what hosts run, and `runs/` beside this folder keeps what
a run measured. Public: `Run` (`run.py`), `Result` (`result.py`).
"""
