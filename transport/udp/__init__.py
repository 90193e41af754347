"""The node's UDP port: demultiplexes by the first byte, answers STUN, carries QUIC as pipes."""
