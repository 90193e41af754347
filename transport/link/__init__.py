"""The logical connection to one peer, which outlives its paths: calls, posts and streams.

Public: `Link`, `Links`, `Call`, `Reply`, `Refusal`, `Handler`, `Stream`, `IncomingStream`,
`LinkStatus`. Imports `host/`, `lane/` and `handshake/`. A plain handler runs inline in the link's
reader and must not block; a coroutine function gets a task, and their number per link is bounded.
An unexpected exception in a handler ends the link and is reported (ADR 0023). A link without a path
is quiet, and both sides look for a path until its grace ends.
"""
