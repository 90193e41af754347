"""The same internet built from the kernel's own parts: namespaces, nftables, TUN devices.

It runs in real time and needs root; the simulator is checked against it.
"""
