"""The daemon's end of the connection to a worker process.

Public: `start_process`, `Connect`, `WorkerConnection`, `WorkerRequests`. Imports `wire.py` and the
host.
"""
