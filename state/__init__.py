"""The swarm's shared state: signed single-author feeds, their replication, and views over them."""
