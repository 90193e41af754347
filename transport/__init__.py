"""Communication between two nodes: identities, addresses, secure links, calls and streams, NAT
traversal, limits.

This package imports no other package of the project. The modules at its top level are used by all
of its rooms: `Identity` and `PeerId`, `Address`, `ByteStream` and `PathKind`, the only decoder,
`Guard`, `Limits`, rates, errors. The rooms build on each other in this order, which a layout test
enforces: `host`, `lane`, `handshake`, `link`, `dial`; then the rooms that plug into `dial`: `udp`,
`lan`, `relay`, `libp2p`, `nat`, `browser`; and at last `strategies`, which combines them. Other
packages use `Endpoint` (`dial/`), `Dialer` (`strategies/`), `Link`, `Call`, `Reply`
and `Refusal` (`link/`), and `Host` (`host/`).
"""
