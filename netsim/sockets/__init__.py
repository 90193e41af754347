"""Sockets of simulated hosts, with the interface of trio's sockets: UDP, TCP and Unix sockets, with
their options and name resolution.

Public: `SocketFactory` and `equip` (`factory.py`). `tcp/` implements TCP without I/O.

Imports `network/`.
"""
