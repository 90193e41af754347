"""The messages of the control socket: frozen dataclasses for requests, events and replies.

May import `encoding.py`, `node/defaults.py` and light modules of definitions, so that commands
start quickly. Public: all of it; `encoding.py` turns a message into JSON and back. One file for
each group of operations. Specified in docs/spec/control.md.
"""
