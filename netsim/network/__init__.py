"""Packets, subnets, links and gateways: all that carries a packet from one host to another.

Public: `Network`, `Packet`, `LinkSpec`, `Subnet`, `GatewayPlace`. The kinds of NAT are in `nat/`,
and the sockets are in `sockets/`.

Imports `disk/`, `nat/`, `sockets/` and `trace/`.
"""
