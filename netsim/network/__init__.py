"""Packets, subnets, links and gateways: all that carries a packet from one host to another.

Public: `Network`, `Packet`, `LinkSpec`, `Gateway`. The kinds of NAT are in `nat/`, and the sockets
are in `sockets/`.
"""
