"""How nodes come to have the same feeds: news, comparisons, pulls, and whose feeds are kept.

Public: `Replica`, `Replication`, `Holding`, `Interest`. Imports `feeds/`.
"""
