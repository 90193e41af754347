"""Traces: records of a run's packets, a hash of these records, and files that store them.

Public: `Trace` (`trace.py`), `first_difference` (`file.py`).

Imports `network/`.
"""
