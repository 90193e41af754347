"""An internet in one process, on which the unmodified daemon runs in virtual time.

Imports nothing of ours, except in `daemons/`, which knows what is simulated. Public: `World`,
`Host`, `Faults`, the pytest fixture `world` (`plugin.py`). Use: docs/netsim.md,
docs/spec/scenario.md.
"""
