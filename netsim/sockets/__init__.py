"""Sockets of simulated hosts, as trio programs see them: UDP, TCP, Unix; names and options.

Public: `SocketFactory` and `equip` (`factory.py`). `tcp/` is TCP without I/O.
"""
