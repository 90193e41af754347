"""The disk of a simulated host: it outlives crashes, and loses what a real disk would lose.

Public: `Disk`, `File`, `Mount`.
"""
