"""Communication between two nodes: identities, addresses, secure links, calls and streams, NAT
traversal, limits.

This package imports no other package of the project. The modules at its top level are used by all
of its rooms: `Identity` and `PeerId`, `Address`, `ByteStream` and `PathKind`, the only decoder,
`Guard`, `Limits`, rates, errors. The rooms build on each other in this order: `host`, `lane`,
`handshake`, `link`, then the strategies `udp`, `lan`, `relay`, `browser`, `libp2p` and `nat`, and
at last `dial`, which combines them. Other packages use `Endpoint` and `Dialer` (`dial/`), `Link`,
`Call`, `Reply` and `Refusal` (`link/`), and `Host` (`host/`).
"""
