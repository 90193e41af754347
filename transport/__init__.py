"""The transport between two nodes: identity, secure lanes, calls and streams, and limits."""
