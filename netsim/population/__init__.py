"""Volunteers: their links, NATs, places and habits, and the published data behind them.

Public: `draw` and `build` (`mix.py`), `churn` (`churn.py`), `link` (`profiles.py`), `matrix`
(`latency.py`).
"""
