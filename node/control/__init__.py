"""The control socket: what commands on this machine can ask a daemon, and what it shows
(docs/spec/control.md).

Public: `ControlServer`, the classes of operations, and `messages/`. One file for each group of
operations, which take the parts of the daemon that they use. A request is one JSON line, the reply
is JSON lines of which the last says `ok` or `error`; a client that disconnects cancels its request.
"""
