"""Links to peers, and connection attempts, without any knowledge of optional strategies.

Public: `Endpoint`, the one TCP port that accepts and dials connections and has one link per peer.
Strategies plug in with `Endpoint.accept` (for connections of another protocol), `Endpoint.join`
(for a byte stream that a strategy has opened), `Rescue.register_finder` (the search for a new
path of a link) and as the `AttemptPlan` of the `ConnectionAttempts`. Imports `link/` and the rooms
below it (`handshake/`, `lane/`, `host/`), but no strategy.
"""
