"""The node's dialer, which joins all strategies of finding paths (docs/spec/strategies.md).

Public: `Dialer`, and `Strategies`, which selects the strategies that are enabled. This is the only
room that knows more than one strategy. Imports the rooms that it joins, `udp/`, `lan/`, `relay/`,
`libp2p/`, `nat/`, and those below them: `dial/`, `link/`, `handshake/` and `host/`.
"""
