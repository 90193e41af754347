"""How two nodes talk: identities, addresses, secure links, calls and streams, NAT traversal,
limits.

Imports nothing of ours. At the top lie what all rooms use: `Identity` and `PeerId`, `Address`,
`ByteStream` and `PathKind`, the one decoder, `Guard`, `Limits`, rates, errors. The rooms build on
each other in this order: `host`, `lane`, `handshake`, `link`, then the strategies `udp`, `lan`,
`relay`, `browser`, `libp2p` and `nat`, and `dial`, which joins them. Others use `Endpoint` and
`Dialer` (`dial/`), `Link`, `Call`, `Reply` and `Refusal` (`link/`), and `Host` (`host/`).
"""
