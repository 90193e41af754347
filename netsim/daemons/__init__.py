"""The unmodified daemon on simulated hosts: its interface to the world, an engine, a text child.

The only part of `netsim/` that imports other packages of ours. Public: `Daemon`, `DaemonHandle`
(`daemon.py`), `SimulatedHost` (`host.py`).
"""
