"""What the cluster agrees on: signed feeds by single authors, and views over them.

Imports `transport/` only. Public: `State` (`service.py`), `Directory`, the protocol that everything
above uses, and `Listing`, which answers it. Nothing here is a lock: claims are ordered by (attempt,
hash).
"""
