"""Links to peers, and connection attempts, without any knowledge of optional strategies.

Public: `Endpoint`, the one TCP port that accepts, dials and keeps one link per peer. Strategies
plug in: by `Endpoint.accept` (connections of another protocol), `Endpoint.join` (a byte stream that
they have opened), `Endpoint.finder` (the search for a lost link's path), and as the `AttemptPlan`
of the `ConnectionAttempts`. Imports `link/` and the rooms below it, but no strategy.
"""
