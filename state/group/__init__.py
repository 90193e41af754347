"""Private groups: the members of a private swarm, with their roles and secrets."""
