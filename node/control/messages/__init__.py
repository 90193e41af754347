"""The messages of the control socket: frozen dataclasses for requests, events and replies.

Public: all messages. Imports `node/defaults.py` and definitions that import quickly, so that
commands start without delay. `encoding.py` turns a message into JSON and back. Each file has the
messages of one group of operations. Specified in docs/spec/control.md.
"""
