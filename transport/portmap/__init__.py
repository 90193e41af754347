"""Ports that the router forwards: NAT-PMP, PCP and UPnP, renewed while the node runs."""
