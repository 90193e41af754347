"""The node's one UDP port: told apart by the first byte, STUN answered, QUIC carried as pipes."""
