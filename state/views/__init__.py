"""Views over all feeds: indexes that are updated fact by fact and can be watched.

Public: `Views`, the view of each kind of facts (`Jobs`, `Members`, `ModelNames`), `ViewWatch`, and
the functions that make and read facts. Imports `feeds/`, `membership/`, `replication/` and
`transport/`.
"""
