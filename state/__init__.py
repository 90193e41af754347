"""State that all nodes share: feeds, each signed by its one author, and views derived from them.

Imports `transport/` only. Public: `State` (`service.py`); `Directory`, the protocol through which
the layers above see the members; and `Listing`, which implements it. There are no locks: several
nodes may claim one job, and a fixed order of claims decides which of them counts.
"""
