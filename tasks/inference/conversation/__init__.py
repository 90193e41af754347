"""The conversation of a gateway with the chain that answers a request.

A request is a `Talk`. `Routes` chooses chains for it, `Opening` opens and closes them,
`Conversation` sends the prompt and receives the tokens, `Replacing` continues over another chain,
and `OpenRuns` receives the messages of stages.

Public: `Conversation`, `Talk`, `OpenRuns`, `Opening`, `Routes`, `Replacing`, `ItemQueue`,
`Recomputed`. Imports `drafting/`, `engine/`, `placement/`, `routing/`, `surviving/`, `text/`,
`state/` and `transport/`.
"""
