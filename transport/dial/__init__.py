"""What finds and improves the paths to peers (docs/spec/ladder.md).

Public: `Endpoint`, the one TCP port that accepts, dials and keeps one link per peer, and `Dialer`,
which runs the strategies (`Strategies` says which are on) and makes one connection attempt per peer
at a time. Imports every other room of `transport/`.
"""
