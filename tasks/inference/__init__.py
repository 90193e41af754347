"""Generation of one answer through a chain of stages: the gateway's part and the stages' part.

Public: `Gateway`, `GenerateRequest`, `Models`, `ModelSources`, `Stage`, `Courier`. Imports
`engine/`, `text/`, `routing/`, `drafting/`, `chunks/`, `costs/`, `placement/` and `usage/`. Spec:
docs/spec/session.md.
"""
