"""How two nodes talk: identity, secure lanes, calls and streams, limits."""
