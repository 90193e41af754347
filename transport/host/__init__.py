"""The one seam to the world: clock, entropy, sockets, files, database, child processes.

Public: the protocols `Host`, `Files`, `Child` and `FileLock` (`seam.py`), `RealHost` (`real.py`),
`Database`, and `Datagrams`. Imports only the errors and constants of `transport/`. The simulator
supplies another `Host`; nothing above this room touches the world in any other way (a layout test
enforces it). `Files` blocks: call it through `host.offload`.
"""
