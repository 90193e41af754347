"""Packets, subnets, links and gateways: how a packet gets from one host to another.

Public: `Network`, `Packet`, `LinkSpec`, `Gateway`. The kinds of NAT are in `nat/`, the sockets in
`sockets/`.
"""
