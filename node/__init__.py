"""The daemon: settings, wiring, lifecycle, and the local control socket.

Imports `tasks/`, `state/`, `dht/` and `transport/`. Public: `run_node` and `Node` (`daemon/`),
`NodeConfig` and `DataFolder` (`settings/`).
"""
