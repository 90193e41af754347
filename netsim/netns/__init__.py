"""Kernel backend: the simulated internet built from namespaces, nftables and TUN devices.

It runs in real time and needs root; the simulator is checked against it.
"""
