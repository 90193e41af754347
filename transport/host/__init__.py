"""The only interface to the outside world: clock, entropy, sockets, files, database, child
processes.

Public: the protocols `Host`, `Files`, `Child` and `FileLock` (`seam.py`), `RealHost` (`real.py`),
`Database`, and `Datagrams`. Imports only the errors and constants of `transport/`. The simulator
supplies another `Host`. No code above this room accesses the outside world in any other way; a
layout test enforces this. The methods of `Files` block, so they must be called through
`host.offload`.
"""
