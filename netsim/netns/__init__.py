"""Kernel backend: an internet of network namespaces, nftables rules and TUN devices.

It runs in real time and needs root. The simulator is checked against it.

Public: `KernelWorld`, `KernelHost`, `KernelGateway`, `Calibration`. Imports `nat/` and `network/`.
"""
