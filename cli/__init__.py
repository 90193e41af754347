"""Commands a person types; they talk to a running daemon through its local socket."""
