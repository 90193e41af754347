"""Port mapping: asks the router to forward ports by PCP, NAT-PMP or UPnP, and renews the leases.

Public: `PortMapper`, `PortMapping`. Imports `host/`.
"""
