"""Replication of feeds between nodes, by news, comparisons and pulls, and the choice of the feeds.

Public: `Replica` (a node's copy of the feeds), `Replication` (its tasks), `Interest` (the kinds of
feeds to store), and `ReplicaFeeds`, the base class of `Replica`. Imports `feeds/`.
"""
