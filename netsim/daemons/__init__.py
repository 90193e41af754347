"""Unmodified shoal daemons on simulated hosts, with a simulated disk, engine and text child.

Imports `disk/` and `sockets/`, and as the only part of `netsim/` the other packages of shoal.
Public: `Daemon`, `DaemonHandle` (`daemon.py`), `SimulatedHost` (`host.py`).
"""
