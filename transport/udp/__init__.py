"""The node's UDP port: demultiplexes datagrams by their first byte, hands STUN messages to `nat/`,
and provides byte streams over QUIC.

Public: `UdpPort`, `QuicByteStream`. Imports `handshake/` and `host/`.
"""
