"""What makes a run repeatable: nothing of the real machine shows in it.

Public: `strict`, `deterministic_collection`, `reexec`.
"""
