"""Gateways of volunteers: NATs, firewalls and carrier NATs.

`portmap/` has their services, and `probes/` finds out how they behave. Public: `KINDS`, `build` and
`knobs_of` (`kinds.py`).
"""
