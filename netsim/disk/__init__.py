"""Disk of a simulated host. Its files survive a crash of the host, except for what a real disk
would lose.

Public: `Disk`, `File`, `Mount`.

Imports only the modules at the top of the folders that contain it.
"""
