"""How this node takes part in its swarm: its first links, invitations and groups, and its DHT
records.

Public: `Bootstrap`, `Credentials`, `Grouping`, `Discovery`, `Seeking`. Imports `models/` and
`settings/`.
"""
