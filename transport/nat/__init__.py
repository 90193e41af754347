"""How this node is reached behind its NAT, and how it gets through those of others.

Rooms: `portmap/` asks the router for a port, `reach/` has peers measure how this node is reached,
`punch/` makes holes. Here lies what those know together: `Whereabouts`, where this node can be
reached; `Knowledge`, what is known of a peer before a punch; `Vouching`, where other peers see a
peer.
"""
