"""Private groups: the members of a private swarm, with their roles and secrets.

Public: `Group`, `GroupAdmission`, `Upkeep`, `Role`, `Charter`, `Secrets`. Imports `feeds/`,
`replication/`, `views/` and `transport/`.
"""
