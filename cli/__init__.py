"""Commands that a person types; they talk to a running daemon through its local socket.

Imports `node/` and `netsim/`, and names from below. `main.py` is the edge of the process: every
error becomes one line `error: …` and one line `hint: …` on standard error, with an exit code of
`errors.py`.
"""
