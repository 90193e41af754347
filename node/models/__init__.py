"""The models of this node: what its library has, which of them it may serve, and where others can
be found.

Public: `Providers`, `AnnouncedRoots`, `Inventory`. Imports `swarm/`, and the health of `node/`.
"""
