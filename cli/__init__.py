"""The command line. The commands send requests to a running daemon over its local socket.

Imports `node/` and `netsim/`, and names from the packages below them. `main.py` prints every error
as one line `error: …` and one line `hint: …` on standard error, and exits with a code of
`errors.py`.

Public: `main`, and `Commands` (`options.py`).
"""
