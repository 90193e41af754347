"""Exchange of content between peers: serves what this node has, and fetches what it lacks.

Content is fetched from several providers at once. Public: `ChunkExchange`, `FetchReport`, `Swarm`.
Imports `content/` and `records/`.
"""
