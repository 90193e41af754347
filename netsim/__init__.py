"""An internet in one process, on which the unmodified daemon runs in virtual time.

Imports nothing of the product that it simulates, except in `daemons/`. Public: `World`, `Host`,
`Faults`, and the pytest fixture `world` (`plugin.py`). Guide: docs/netsim.md and
docs/spec/scenario.md.
"""
