"""What happened in a run: packets as records, a running hash, and files of both.

Public: `Trace`, `first_difference`.
"""
