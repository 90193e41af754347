"""The daemon's end of the connection to a worker process, and the engines of several devices as one.

Public: `start_process`, `Connect`, `WorkerConnection`, `WorkerRequests`, `DeviceEngines`. Imports
`wire.py` and the host.
"""
