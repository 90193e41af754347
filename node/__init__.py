"""The daemon: its settings, its parts and how they are connected, its life from start to stop, and
the local control socket.

Imports `tasks/`, `state/`, `dht/` and `transport/`. Public: `run_node` and `Node` (`daemon/`),
`NodeConfig` and `DataFolder` (`settings/`).
"""
