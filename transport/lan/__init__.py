"""Discovery of peers on the local network by multicast DNS.

Public: `Neighbourhood`. Imports `dial/` and `host/`.
"""
