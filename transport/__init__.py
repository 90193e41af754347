"""Communication between two nodes: identities, addresses, secure links, calls and streams, NAT
traversal, limits.

Imports no other package of the project.

Public: the modules at its top level, which all of its rooms use: `Identity` and `PeerId`,
`Address`, `ByteStream` and `PathKind`, the only decoder, `Guard`, `Limits`, rates, errors. The
rooms build on each other in this order, which a layout test enforces: `host`, `lane`, `handshake`,
`link`, `dial`; then the rooms that plug into `dial`: `udp`, `lan`, `relay`, `libp2p`, `nat`,
`browser`; and at last `strategies`, which combines them. Other packages use `Endpoint` (`dial/`),
`Dialer` (`strategies/`), `Link`, `Call`, `Reply` and `Refusal` (`link/`), and `Host` (`host/`).
"""
