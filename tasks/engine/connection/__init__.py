"""The daemon's end of the connection to a worker process, and several engines joined to one.

Public: `start_process`, `Connect`, `WorkerConnection`, `WorkerRequests`, `DeviceEngines`. Imports
`wire.py` and the host.
"""
