"""NATs, firewalls and carrier-grade NATs, as gateways of simulated networks.

`portmap/` has the services by which hosts request ports, and `probes/` measures the behaviour of a
NAT. Public: `KINDS`, `build` and `knobs_of` (`kinds.py`).

Imports `network/` and `sockets/`.
"""
