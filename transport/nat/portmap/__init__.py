"""Port mapping: asks the router to forward ports by NAT-PMP, PCP or UPnP, and renews the leases."""
