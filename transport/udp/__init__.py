"""The node's UDP port: demultiplexes datagrams by their first byte, passes on STUN, and provides
byte streams over QUIC."""
