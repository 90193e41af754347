"""Services by which a host requests a port forward from its gateway: UPnP-IGD, PCP and NAT-PMP.

Public: `add_igd` (`igd.py`), which adds them to a gateway.

Imports `network/` and `sockets/`.
"""
