"""The node's dialer, which joins all strategies of finding paths (docs/spec/strategies.md).

Public: `Dialer`, and `Strategies`, which selects the strategies that are enabled. This is the only
room that knows more than one strategy. It imports every other room of `transport/`.
"""
