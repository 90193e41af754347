"""Generation of one answer through a chain of stages: the gateway's part and the stages' part.

Public: `Gateway`, `GenerateRequest`, `Models`, `Sources`, `Stage`, `Courier`. Imports `engine/`,
`placement/`, `text/` and `usage/`. Spec: docs/spec/session.md.
"""
