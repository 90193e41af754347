"""Commands for the terminal. Most talk to a running daemon through its local socket."""
