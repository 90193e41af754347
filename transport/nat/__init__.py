"""NAT traversal: reaches peers behind their NATs, and lets peers reach this node behind its own.

Rooms: `portmap/` asks the router to forward ports to this node. `reach/` has peers measure how this
node can be reached. `punch/` opens direct paths through the NATs of both sides (hole punching).

The modules of this folder combine the results of the three rooms. `Whereabouts` gives the addresses
at which this node can be reached. `NodeKnowledge` gives the addresses that hole punching may use.
`Vouching` asks linked peers where they see another peer.

Public: `Whereabouts`, `NodeKnowledge`, `AddressVouching`, `WebPort`. Imports `dial/`, `host/`,
`link/`, `relay/` and `udp/`.
"""
