"""The node's dialer, which joins all strategies of finding paths (docs/spec/ladder.md).

Public: `Dialer`, and `Strategies`, which says which of them are on. The only room that knows more
than one strategy. Imports every other room of `transport/`.
"""
