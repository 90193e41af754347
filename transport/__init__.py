"""How two nodes talk: identities, addresses, secure links, calls and streams, NAT traversal,
limits.

Imports nothing of ours. At the top lie what all rooms use: `Identity` and `PeerId`, `Address`,
`ByteStream` and `PathKind`, the one decoder, `Guard`, `Limits`, rates, errors. The rooms build on
each other in this order, which a layout test enforces: `host`, `lane`, `handshake`, `link`, `dial`;
then what plugs into `dial`: `udp`, `lan`, `relay`, `libp2p`, `nat`, `browser`; and `strategies`,
which joins them. Others use `Endpoint` (`dial/`), `Dialer` (`strategies/`), `Link`, `Call`, `Reply`
and `Refusal` (`link/`), and `Host` (`host/`).
"""
