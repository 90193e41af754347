"""Unmodified shoal daemons on simulated hosts, with a simulated disk, engine and text child.

This is the only part of `netsim/` that imports the other packages of shoal. Public: `Daemon`,
`DaemonHandle` (`daemon.py`), `SimulatedHost` (`host.py`).
"""
