"""Models at this node: what its library holds, which it may serve, where others can be had.

Public: `Providers`, `Holdings`. Imports the settings and health of `node/`.
"""
