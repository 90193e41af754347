"""The simulator's commands: one run and its folder, sweeps over seeds, replays, runs on this
machine's kernel.

Public: what `commands/sim.py` calls. Imports `netsim/`.
"""
