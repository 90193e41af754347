"""Private groups: who belongs to a private swarm, in which role, and with which secrets."""
