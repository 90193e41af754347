"""Services by which a host asks its gateway for a port: UPnP-IGD, PCP and NAT-PMP.

Public: `add_igd` (`igd.py`), which equips a gateway with them.
"""
