"""The logical connection to one peer, which outlives its paths: calls, posts and streams.

Public: `Link`, `Links`, `Call`, `Reply`, `Refusal`, `Handler`, `Stream`, `IncomingStream`,
`LinkStatus`. Imports `host/`, `lane/` and `handshake/`. A plain handler runs inline in the link's
reader and must not block. A coroutine function runs in a task of its own, and each link limits the
number of these tasks. An unexpected exception in a handler ends the link and is reported (ADR
0023). If a link has no path, both sides search for one until the grace period ends.
"""
