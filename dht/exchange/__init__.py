"""Content between peers: what this node has is served, what it lacks is fetched from several
providers.

Public: `Exchange`, `FetchReport`, `Swarm`. Imports `content/` and `records/`.
"""
