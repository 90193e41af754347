"""The daemon: configuration, wiring, lifecycle and the local control socket."""
