"""The control socket, over which commands on this machine send requests to a daemon
(docs/spec/control.md).

Public: `ControlServer`, the classes of operations, and `messages/`. Each file has one group of
operations; its class receives the parts of the daemon that these operations use. A request is one
line of JSON. The reply is one or more lines of JSON, and the last one says `ok` or `error`. If a
client disconnects, its request is cancelled.

Imports `daemon/`, `http/`, `models/`, `settings/`, `swarm/`, `tasks/`, `state/`, `dht/` and
`transport/`.
"""
