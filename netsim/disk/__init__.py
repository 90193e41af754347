"""Disk of a simulated host. Its files survive a crash of the host, except for what a real disk
would lose.

Public: `Disk`, `File`, `Mount`.
"""
