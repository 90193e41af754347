"""Parts of the worker's core: how sessions are opened, what is checked of spans, how they are
answered, and which session ends if memory is short.

Public: `Runner`, `SessionRules`, `parse_open`, `Emit`. Imports `families/`, `kv/`, `scheduling/`
and `transport/`.
"""
