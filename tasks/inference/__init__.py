"""One answer through a chain of stages: the gateway's side, and the stages' side.

Public: `Gateway`, `GenerateRequest`, `Models`, `Sources`, `Stage`, `Courier`. Imports `engine/`,
`placement/`, `text/` and `usage/`. Spec: docs/spec/session.md.
"""
