"""The OpenAI-compatible HTTP API of a node, on loopback and with a token.

`server.py` listens and imports the rest only when a client connects, because hypercorn and
starlette take 7 MB. Specified in docs/spec/api.md.

Public: `ApiServer`, `Backend`, `preload`. Imports `control/` and `settings/`.
"""
