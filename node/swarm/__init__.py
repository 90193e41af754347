"""This node in its swarm: first peers, invitations and groups, what it says in the DHT.

Public: `Bootstrap`, `Credentials`, `Grouping`, `Discovery`, `Seeking`. Imports `models/`.
"""
