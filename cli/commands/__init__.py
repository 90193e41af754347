"""The commands. Each file has one command, or one group of commands.

Public: the functions that click calls. Imports `simulator/`, `netsim/`, `node/`, `tasks/`, `dht/`
and `transport/`.
"""
