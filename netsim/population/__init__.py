"""Populations of volunteers: their links, NATs, locations and habits, with data from publications.

Public: `draw` and `build` (`mix.py`), `churn` (`churn.py`), `link` (`profiles.py`), `matrix`
(`latency.py`).

Imports `network/`.
"""
